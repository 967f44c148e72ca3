from typing import Any

import pytest
import torch

from quantkit.core.scheme import Scheme
from quantkit.methods import awq, rtn
from quantkit.methods.awq import AwqOptions
from quantkit.methods.rtn import RtnOptions
from quantkit.stats.inputs import InputStats
from tests.methods.solving import quantized, rescaled

SCHEME = Scheme(symmetric=False)


def output_error(
    weights: list[torch.Tensor], x: torch.Tensor, s: torch.Tensor, options: AwqOptions
) -> float:
    """An explicit forward: quantized W diag(s) on x / s, against W on x."""
    solved = quantized(awq, [w * s for w in weights], None, SCHEME, torch.float32, options)
    return sum(
        float(((x / s) @ q.qtensor.dequantize().T - x @ w.T).square().sum())
        for q, w in zip(solved, weights, strict=True)
    )


def test_rescaling_lowers_the_output_error(
    weights: list[torch.Tensor], make_inputs: Any, collect: Any
) -> None:
    x = make_inputs(192)
    s = rescaled(awq, weights, collect(x), SCHEME, AwqOptions())
    assert s is not None
    assert s.shape == (192,)
    assert (s > 0).all()
    assert float(s.amax() * s.amin()) == pytest.approx(1, rel=1e-3)
    rows = x.view(-1, 192)
    plain = output_error(weights, rows, torch.ones(192), AwqOptions())
    assert output_error(weights, rows, s, AwqOptions()) < 0.9 * plain


def test_rescaling_changes_no_output_in_full_precision(
    weights: list[torch.Tensor], make_inputs: Any, collect: Any
) -> None:
    x = make_inputs(192)
    s = rescaled(awq, weights, collect(x), SCHEME, AwqOptions())
    assert s is not None
    for w in weights:
        torch.testing.assert_close(
            (x / s).double() @ (w * s).double().T, x.double() @ w.double().T, rtol=1e-5, atol=1e-3
        )


def test_the_loss_from_the_hessian_is_that_of_a_forward(
    weights: list[torch.Tensor], make_inputs: Any, collect: Any
) -> None:
    x = make_inputs(192)
    rows = x.view(-1, 192)
    for solved, w in zip(
        quantized(awq, weights, collect(x), SCHEME, torch.bfloat16, AwqOptions()),
        weights,
        strict=True,
    ):
        error = rows @ (solved.qtensor.dequantize() - w).T
        expected = float(error.square().sum() / (rows @ w.T).square().sum())
        assert solved.loss == pytest.approx(expected, rel=1e-3)


def test_even_channels_are_left_alone(collect: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 200, 128, generator=generator)
    weight = torch.randn(300, 128, generator=generator)
    assert rescaled(awq, [weight], collect(x), SCHEME, AwqOptions()) is None


def test_switches(weights: list[torch.Tensor], stats: InputStats) -> None:
    assert rescaled(awq, weights, stats, SCHEME, AwqOptions(rescale=False)) is None
    spanning = rescaled(awq, weights, stats, SCHEME, AwqOptions(clip=False))
    assert spanning is not None
    positive = quantized(awq, weights, stats, Scheme(), torch.bfloat16, AwqOptions(signed=False))
    assert (positive[0].qtensor.scales > 0).all()


def test_without_rescaling_it_is_rtn(weights: list[torch.Tensor], stats: InputStats) -> None:
    ours = quantized(awq, weights, stats, SCHEME, torch.bfloat16, AwqOptions())
    theirs = quantized(rtn, weights, stats, SCHEME, torch.bfloat16, RtnOptions())
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a.qtensor.codes, b.qtensor.codes)


@pytest.mark.parametrize("case", ["dead", "none", "one"])
def test_poor_inputs(
    case: str, weights: list[torch.Tensor], make_inputs: Any, collect: Any
) -> None:
    x = make_inputs(192, sequences=1)
    if case == "one":
        x = x[:, :1]
    else:
        x[..., :: 1 if case == "none" else 3] = 0
    s = rescaled(awq, weights, collect(x), SCHEME, AwqOptions())
    assert s is None or bool((torch.isfinite(s) & (s > 0)).all())
