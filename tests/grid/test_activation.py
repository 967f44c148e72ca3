import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quantkit.grid.activation import int8_per_token


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
