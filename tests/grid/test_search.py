import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quantkit.grid.affine import AffineGrid
from quantkit.grid.rounding import steps_of
from quantkit.grid.search import search_scales
from quantkit.grid.tiles import CPU

BITS = (2, 3, 4, 8)


def error(
    panel: torch.Tensor,
    importance: torch.Tensor,
    grid: AffineGrid,
    found: tuple[torch.Tensor, torch.Tensor | None],
) -> torch.Tensor:
    residual = steps_of(panel, found[0], found[1], grid) * found[0] - panel
    return importance @ residual.square()


@given(
    seed=st.integers(0, 10**6),
    bits=st.sampled_from(BITS),
    symmetric=st.booleans(),
    signed=st.booleans(),
)
@settings(max_examples=40)
def test_search_is_never_worse_than_spanning(
    seed: int, bits: int, symmetric: bool, signed: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    panel = torch.randn(64, 30, generator=generator)
    importance = torch.rand(64, generator=generator) ** 4
    grid = AffineGrid(bits, symmetric, torch.bfloat16, signed)
    best = search_scales(panel, importance, grid)
    assert signed or not symmetric or (best[0] > 0).all()
    spanned = error(panel, importance, grid, grid.span(panel))
    assert (error(panel, importance, grid, best) <= spanned * (1 + 1e-5)).all()


@pytest.mark.parametrize(("bits", "share"), [(2, 0.7), (3, 0.75), (4, 0.8), (8, 0.95)])
def test_search_gains_what_it_should(bits: int, share: float) -> None:
    generator = torch.Generator().manual_seed(3)
    panel = torch.randn(64, 400, generator=generator)
    importance = torch.rand(64, generator=generator) ** 4
    grid = AffineGrid(bits, symmetric=True, dtype=torch.float32)
    best = error(panel, importance, grid, search_scales(panel, importance, grid)).sum()
    assert best < share * error(panel, importance, grid, grid.span(panel)).sum()


@pytest.mark.parametrize("symmetric", [True, False])
def test_search_comes_near_a_dense_scan(symmetric: bool) -> None:
    """The slow twin: 400 scales of both signs, and every zero."""
    generator = torch.Generator().manual_seed(5)
    panel = torch.randn(32, 50, generator=generator)
    importance = torch.rand(32, generator=generator)
    grid = AffineGrid(3, symmetric, torch.float32)
    best = torch.full((50,), torch.inf)
    span = panel.abs().amax(0)
    for sign, i, zero in itertools.product((1, -1), range(1, 401), range(1, 8)):
        zeros = None if symmetric else torch.full((50,), float(zero))
        if (symmetric and zero > 1) or (not symmetric and sign < 0):
            continue
        found = sign * span * i / 800, zeros
        best = torch.minimum(best, error(panel, importance, grid, found))
    got = error(panel, importance, grid, search_scales(panel, importance, grid))
    assert got.sum() < 1.03 * best.sum()


def test_panels_are_searched_in_pieces_without_a_seam() -> None:
    generator = torch.Generator().manual_seed(1)
    panel = torch.randn(512, CPU.search // 512 + 100, generator=generator)
    importance = torch.ones(512)
    grid = AffineGrid(4, symmetric=False, dtype=torch.float16)
    scales, zeros = search_scales(panel, importance, grid)
    tail_scales, tail_zeros = search_scales(panel[:, -100:], importance, grid)
    assert zeros is not None
    assert tail_zeros is not None
    torch.testing.assert_close(scales[-100:], tail_scales, rtol=1e-2, atol=0)
    assert torch.equal(zeros[-100:], tail_zeros)
