import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quantkit.grid.minifloat import EIGHT, FOUR, MiniFloat

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


def numbers(kind: MiniFloat) -> torch.Tensor:
    """All of them, ascending; NaN left out."""
    values = kind.values(torch.arange(1 << kind.bits, dtype=torch.uint8))
    return torch.tensor(sorted(set(values[~values.isnan()].tolist())))


def test_eight_bits_are_torchs_own() -> None:
    values = torch.randn(10_000, generator=torch.Generator().manual_seed(0)) * 100
    values = torch.cat((values, values / 10_000, values * 100, torch.zeros(1)))
    expected = values.clamp(-448, 448).to(torch.float8_e4m3fn)
    rounded = EIGHT.round(values, torch.empty_like(values))
    assert torch.equal(rounded, expected.float())
    assert torch.equal(EIGHT.values(EIGHT.codes(rounded)), rounded)


@pytest.mark.parametrize("kind", [EIGHT, FOUR], ids=["e4m3", "e2m1"])
def test_each_number_has_a_code_of_its_own(kind: MiniFloat) -> None:
    every = numbers(kind)
    assert len(every) == (253 if kind.bits == 8 else 15)
    assert torch.equal(kind.round(every, torch.empty_like(every)), every)
    assert torch.equal(kind.values(kind.codes(every)), every)


@given(values=st.lists(FLOATS, min_size=1, max_size=20))
@pytest.mark.parametrize("kind", [EIGHT, FOUR], ids=["e4m3", "e2m1"])
def test_no_number_is_nearer(kind: MiniFloat, values: list[float]) -> None:
    given_values = torch.tensor(values)
    rounded = kind.round(given_values, torch.empty_like(given_values))
    distance = (given_values.double()[:, None] - numbers(kind).double()).abs().amin(1)
    assert torch.equal((given_values.double() - rounded.double()).abs(), distance)


def test_ties_go_to_the_even_code() -> None:
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    rounded = FOUR.round(ties, torch.empty_like(ties))
    assert rounded.tolist() == [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0]
    assert (FOUR.codes(rounded) % 2 == 0).all()


def test_values_may_be_rounded_in_place() -> None:
    values = torch.linspace(-7, 7, 99)
    expected = FOUR.round(values, torch.empty_like(values))
    assert FOUR.round(values, values) is values
    assert torch.equal(values, expected)
