import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quantkit.grid.affine import AffineGrid
from quantkit.grid.rounding import steps_of

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
BITS = (2, 3, 4, 8)


def panel(seed: int, magnitude: float = 1.0, shape: tuple[int, int] = (32, 40)) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator) * magnitude


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_signed_scale_puts_the_extreme_weight_on_the_outermost_code(
    bits: int, dtype: torch.dtype
) -> None:
    weights = panel(0)
    grid = AffineGrid(bits, symmetric=True, dtype=dtype)
    scales, zeros = grid.span(weights)
    assert zeros is None
    steps = steps_of(weights, scales, None, grid)
    at = weights.abs().argmax(0)
    columns = torch.arange(weights.shape[1])
    assert (steps[at, columns] == -(1 << (bits - 1))).all()
    exact = (steps * scales)[at, columns]
    torch.testing.assert_close(exact, weights[at, columns], rtol=2**-8, atol=0)
    assert (scales < 0).any()
    assert (scales > 0).any()


@pytest.mark.parametrize("bits", BITS)
def test_unsigned_scale_is_positive_and_clips_half_a_step_at_most(bits: int) -> None:
    weights = panel(1)
    grid = AffineGrid(bits, symmetric=True, dtype=torch.float32, signed=False)
    scales, _ = grid.span(weights)
    assert (scales > 0).all()
    error = (steps_of(weights, scales, None, grid) * scales - weights).abs()
    assert (error <= scales * 0.5001).all()


@given(
    seed=st.integers(0, 10**6),
    bits=st.sampled_from(BITS),
    shift=st.sampled_from((-9.0, -1.0, 0.0, 0.3, 9.0)),
)
def test_zeros_stay_in_range_and_nothing_is_clipped_by_more_than_a_step(
    seed: int, bits: int, shift: float
) -> None:
    weights = panel(seed) + shift
    grid = AffineGrid(bits, symmetric=False, dtype=torch.float32)
    scales, zeros = grid.span(weights)
    assert zeros is not None
    assert (zeros >= 1).all()
    assert (zeros <= (1 << bits) - 1).all()
    assert (zeros == zeros.round()).all()
    error = (steps_of(weights, scales, zeros, grid) * scales - weights).abs()
    assert (error <= scales * 1.0001).all()


@given(
    seed=st.integers(0, 10**6),
    exponent=st.integers(-140, 120),
    dtype=st.sampled_from(DTYPES),
    symmetric=st.booleans(),
)
def test_scales_are_storable_finite_and_never_zero(
    seed: int, exponent: int, dtype: torch.dtype, symmetric: bool
) -> None:
    weights = panel(seed, 2.0**exponent, (8, 5))
    weights[:, 0] = 0
    scales, _ = AffineGrid(4, symmetric, dtype).span(weights)
    assert torch.isfinite(scales).all()
    assert torch.isfinite(1 / scales).all()
    assert (scales != 0).all()
    assert torch.equal(scales, scales.to(dtype).float())
    assert scales[0] == 1
