"""Properties of all grids of floats, through round to nearest."""

import pytest
import torch

from quantkit.core.grid import rounding_of
from quantkit.core.scheme import Scheme
from quantkit.grid.nearest import nearest

SCHEMES = [
    Scheme("fp8", 8, None),
    Scheme("fp8", 8, 128, rows=128),
    Scheme("fp8", 8, None, rows=None),
    Scheme("mxfp8", 8, 32),
    Scheme("mxfp4", 4, 32),
    Scheme("nvfp4", 4, 16),
]
GENERATOR = torch.Generator().manual_seed(3)
WEIGHT = torch.randn(48, 256, generator=GENERATOR) * (torch.rand(48, 1, generator=GENERATOR) + 0.1)


@pytest.fixture(params=SCHEMES, ids=Scheme.label)
def scheme(request: pytest.FixtureRequest) -> Scheme:
    found: Scheme = request.param
    return found


def error(weight: torch.Tensor, importance: torch.Tensor | None, scheme: Scheme) -> float:
    grid = rounding_of(scheme, torch.float32, [weight])
    found = nearest(weight, importance, scheme, grid).dequantize() - weight
    weights = torch.ones(weight.shape[1]) if importance is None else importance
    return float(found.square() @ weights @ torch.ones(len(weight)))


def test_a_search_is_never_worse(scheme: Scheme) -> None:
    for importance in (torch.ones(256), torch.rand(256, generator=GENERATOR) ** 4):
        grid = rounding_of(scheme, torch.float32, [WEIGHT])
        spread = nearest(WEIGHT, None, scheme, grid).dequantize() - WEIGHT
        plain = float(spread.square() @ importance @ torch.ones(48))
        assert error(WEIGHT, importance, scheme) <= plain * (1 + 1e-5)


def test_what_lies_on_the_grid_stays(scheme: Scheme) -> None:
    grid = rounding_of(scheme, torch.float32, [WEIGHT])
    once = nearest(WEIGHT, None, scheme, grid).dequantize()
    again = nearest(once, torch.ones(256), scheme, rounding_of(scheme, torch.float32, [once]))
    torch.testing.assert_close(again.dequantize(), once, rtol=1e-6, atol=0)


def test_more_bits_and_smaller_groups_lose_less() -> None:
    losses = [error(WEIGHT, torch.ones(256), s) for s in (SCHEMES[5], SCHEMES[4])]
    assert losses[0] < losses[1]
    eight = [error(WEIGHT, torch.ones(256), s) for s in SCHEMES[:4]]
    assert max(eight) < losses[0] / 5


@pytest.mark.parametrize("value", [0.0, 1e-30, 1e30])
def test_rows_of_one_value(scheme: Scheme, value: float) -> None:
    weight = torch.full((4, 256), value)
    found = nearest(weight, torch.ones(256), scheme, rounding_of(scheme, torch.float32, [weight]))
    assert torch.isfinite(found.dequantize()).all()
    if value == 0:
        assert not found.dequantize().any()
