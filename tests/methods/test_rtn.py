from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch

from quantkit.core.scheme import Scheme
from quantkit.methods import rtn
from quantkit.methods.rtn import RtnOptions
from quantkit.stats.inputs import InputStats
from tests.methods.solving import quantized

SCHEMES = [
    Scheme(bits=bits, group_size=size, symmetric=symmetric)
    for bits, size, symmetric in product((2, 3, 4, 8), (32, 64, None), (True, False))
]


def weighted_error(
    weights: list[torch.Tensor], stats: InputStats | None, scheme: Scheme, options: RtnOptions
) -> float:
    importance = stats.diagonal if stats else torch.ones(192)
    solved = quantized(rtn, weights, stats, scheme, torch.float16, options)
    errors = [s.qtensor.dequantize() - w for s, w in zip(solved, weights, strict=True)]
    return sum(float((e.square() @ importance).sum()) for e in errors)


@pytest.mark.parametrize("scheme", SCHEMES, ids=Scheme.label)
def test_search_pays_by_its_own_measure(
    scheme: Scheme, weights: list[torch.Tensor], stats: InputStats
) -> None:
    for known in (stats, None):
        plain = weighted_error(weights, known, scheme, RtnOptions(search=False))
        assert (
            weighted_error(weights, known, scheme, RtnOptions())
            < (1 if scheme.bits == 8 else 0.95) * plain
        )


def test_the_hessian_tells_what_matters(weights: list[torch.Tensor], stats: InputStats) -> None:
    scheme = Scheme(bits=3)
    seen = quantized(rtn, weights, stats, scheme, torch.bfloat16, RtnOptions())
    blind = quantized(rtn, weights, None, scheme, torch.bfloat16, RtnOptions())
    for a, b, weight in zip(seen, blind, weights, strict=True):
        error = b.qtensor.dequantize() - weight
        whole = ((weight @ stats.hessian) * weight).sum()
        assert b.loss is None
        assert a.loss is not None
        assert a.loss < 0.7 * float(((error @ stats.hessian) * error).sum() / whole)


def test_unsigned_scales_are_positive(weights: list[torch.Tensor], stats: InputStats) -> None:
    for signed in (True, False):
        solved = quantized(rtn, weights, stats, Scheme(), torch.bfloat16, RtnOptions(signed=signed))
        assert (solved[0].qtensor.scales < 0).any() == signed


@pytest.mark.parametrize("features", [192, 130, 100])
def test_threads_change_no_bit(
    features: int, make_inputs: Any, collect: Any, set_threads: Callable[[int], None]
) -> None:
    weight = torch.randn(300, features, generator=torch.Generator().manual_seed(features))
    stats = collect(make_inputs(features))
    scheme = Scheme(group_size=None)
    results = []
    for count in (1, 2):
        set_threads(count)
        results.append(quantized(rtn, [weight], stats, scheme, torch.bfloat16, RtnOptions())[0])
    one, two = results
    assert torch.equal(one.qtensor.codes, two.qtensor.codes)
    assert torch.equal(one.qtensor.scales, two.qtensor.scales)
    assert one.loss == two.loss
