import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quantkit.core.scheme import Activation
from quantkit.grid.activation import (
    change_of,
    fp8_per_token,
    input_scale,
    int8_per_token,
)


@given(seed=st.integers(0, 1000), exponent=st.integers(-6, 6))
def test_it_rounds_to_half_a_step_of_each_token(seed: int, exponent: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(5, 48, generator=generator) * 10.0**exponent
    step = x.abs().amax(-1, keepdim=True) / 127
    assert ((int8_per_token(x) - x).abs() <= step * 0.5001).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_input_stays_as_it_was(dtype: torch.dtype) -> None:
    """Linears that are not quantized may read the same tensor."""
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
    before = x.clone()
    out = int8_per_token(x)
    assert out.dtype == dtype
    assert torch.equal(x, before)
    assert not torch.equal(out, before)


def test_a_token_of_zeros_stays_zero() -> None:
    assert not int8_per_token(torch.zeros(2, 8)).any()


ACTIVATIONS: tuple[Activation, ...] = (
    "int8-token", "fp8-token", "fp8-tensor", "fp8-group128", "nvfp4",
)  # fmt: skip
STEPS = {"int8-token": 0.5 / 127, "nvfp4": 1 / 6}
"""Largest error in units of the token's largest magnitude; e4m3's is 16 / 448."""


@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [48, 128, 320])
def test_all_keep_shape_and_dtype_and_err_little(
    kind: Activation, dtype: torch.dtype, width: int
) -> None:
    x = torch.randn(3, 5, width, generator=torch.Generator().manual_seed(0)).to(dtype)
    x[0, 0] = 0
    before = x.clone()
    change = change_of(kind, input_scale(kind, x.abs().flatten(0, -2).amax(0)))
    assert change is not None
    out = change(x)
    assert out.shape == x.shape
    assert out.dtype == dtype
    assert torch.equal(x, before)
    assert not out[0, 0].any()
    most = x.abs().amax().float() * STEPS.get(kind, 16 / 448)
    assert ((out - x).float().abs() <= most * 1.01).all()


@pytest.mark.parametrize("kind", ["fp8-token", "fp8-group128", "fp8-tensor"])
def test_what_lies_on_the_grid_stays(kind: Activation) -> None:
    x = torch.tensor([[448.0, -0.5, 2.0**-9, 30.0] * 32])
    change = change_of(kind, input_scale(kind, x.abs().amax(0)))
    assert change is not None
    assert torch.equal(change(x), x)


def test_beyond_the_calibrated_range_values_are_cut() -> None:
    change = change_of("fp8-tensor", input_scale("fp8-tensor", torch.tensor([2.0])))
    assert change is not None
    assert change(torch.tensor([[100.0, -100.0]])).tolist() == [[2.0, -2.0]]


def test_without_activations_inputs_stay() -> None:
    assert change_of(None, None) is None
    assert input_scale("fp8-token", torch.ones(3)) is None
    assert fp8_per_token(torch.zeros(2, 8)).any().logical_not()


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_a_batch_without_tokens_stays_empty(kind: Activation) -> None:
    change = change_of(kind, input_scale(kind, torch.ones(1)))
    assert change is not None
    assert change(torch.zeros(0, 128)).shape == (0, 128)
