from dataclasses import replace
from typing import Any

import pytest
import torch

from quantkit.core.scheme import Scheme
from quantkit.grid.activation import int8_per_token
from quantkit.methods import smoothquant
from quantkit.methods.smoothquant import ALPHAS, SmoothquantOptions
from quantkit.stats.inputs import InputStats
from tests.methods.solving import quantized, rescaled

SCHEME = Scheme(bits=8, group_size=None, activation="int8-token")


def output_error(weights: list[torch.Tensor], x: torch.Tensor, s: torch.Tensor) -> float:
    """What an int8 kernel makes of x / s and W diag(s), against W on x."""
    solved = quantized(
        smoothquant, [w * s for w in weights], None, SCHEME, torch.float32, SmoothquantOptions()
    )
    inputs = int8_per_token(x / s)
    return sum(
        float((inputs @ q.qtensor.dequantize().T - x @ w.T).square().sum())
        for q, w in zip(solved, weights, strict=True)
    )


def test_searched_alpha_is_near_the_best(
    weights: list[torch.Tensor], make_inputs: Any, collect: Any
) -> None:
    x = make_inputs(192)
    stats = collect(x)
    rows = x.view(-1, 192)
    found = rescaled(smoothquant, weights, stats, SCHEME, SmoothquantOptions())
    assert found is not None
    fixed = [
        rescaled(smoothquant, weights, stats, SCHEME, SmoothquantOptions(alpha=alpha))
        for alpha in ALPHAS
    ]
    errors = [output_error(weights, rows, s) for s in fixed if s is not None]
    plain = output_error(weights, rows, torch.ones(192))
    assert output_error(weights, rows, found) < 1.1 * min(errors)
    assert output_error(weights, rows, found) < 0.5 * plain


def test_rescaling_changes_no_output_in_full_precision(
    weights: list[torch.Tensor], make_inputs: Any, collect: Any
) -> None:
    x = make_inputs(192)
    s = rescaled(smoothquant, weights, collect(x), SCHEME, SmoothquantOptions())
    assert s is not None
    for w in weights:
        torch.testing.assert_close(
            (x / s).double() @ (w * s).double().T, x.double() @ w.double().T, rtol=1e-5, atol=1e-3
        )


def test_codes_are_8_bits_and_scales_positive(
    weights: list[torch.Tensor], stats: InputStats
) -> None:
    for solved, w in zip(
        quantized(smoothquant, weights, stats, SCHEME, torch.float32, SmoothquantOptions()),
        weights,
        strict=True,
    ):
        assert solved.qtensor.scales.shape == (len(w), 1)
        assert (solved.qtensor.scales > 0).all()
        assert solved.qtensor.zeros is None
        assert solved.loss is not None
        assert solved.loss < 1e-4


def test_switches_and_poor_inputs(weights: list[torch.Tensor], stats: InputStats) -> None:
    assert rescaled(smoothquant, weights, stats, SCHEME, SmoothquantOptions(rescale=False)) is None
    dead = replace(stats, absmax=stats.absmax.clone())
    dead.absmax[:5] = 0
    for alpha in (0.0, 0.5, 1.0, None):
        s = rescaled(smoothquant, weights, dead, SCHEME, SmoothquantOptions(alpha=alpha))
        assert s is None or bool((torch.isfinite(s) & (s > 0)).all())
    blind = quantized(
        smoothquant, weights, None, SCHEME, torch.float32, SmoothquantOptions(search=False)
    )
    assert blind[0].loss is None


def test_alpha_is_taken_at_its_word(weights: list[torch.Tensor], stats: InputStats) -> None:
    s = rescaled(smoothquant, weights, stats, SCHEME, SmoothquantOptions(alpha=0.5))
    assert s is not None
    expected = (stats.absmax / torch.cat(weights).abs().amax(0)).sqrt()
    ratio = s / expected
    assert float(ratio.std() / ratio.mean()) == pytest.approx(0, abs=1e-5)
