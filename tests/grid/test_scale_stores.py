import pytest
import torch

from quantkit.grid.floating import FloatGrid
from quantkit.grid.minifloat import EIGHT, FOUR
from quantkit.grid.scale_stores import (
    NestedScales,
    PlainScales,
    PowerScales,
    ScaleStore,
    TensorScale,
)

WEIGHT = torch.randn(40, 64, generator=torch.Generator().manual_seed(0)) * 0.02
STORES: dict[str, ScaleStore] = {
    "bf16": PlainScales(torch.bfloat16),
    "fp32": PlainScales(torch.float32),
    "tensor": TensorScale.of([WEIGHT], FOUR.largest, torch.float32),
    "e8m0": PowerScales(),
    "e4m3": NestedScales.of([WEIGHT], FOUR.largest),
}
EXTREMES = torch.tensor([0.0, 1e-45, 1e-38, 1e-12, 1e-3, 0.7, 448.0, 1e12, 3e38])


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> ScaleStore:
    found: ScaleStore = STORES[request.param]
    return found


def test_scales_are_numbers_that_can_be_stored(store: ScaleStore) -> None:
    for scales in (store.storable(EXTREMES), store.spanning(EXTREMES, FOUR.largest)):
        assert torch.isfinite(scales).all()
        assert (scales > 0).all()
        assert torch.isfinite(1 / scales).all()
        assert torch.equal(store.storable(scales), scales)
        assert store.stored(scales).dtype == store.dtype


def test_what_is_stored_is_what_was_computed_with(store: ScaleStore) -> None:
    scales = store.spanning(WEIGHT.abs().amax(0), FOUR.largest)
    stored = store.stored(scales)
    read = torch.exp2(stored.float() - 127) if stored.dtype == torch.uint8 else stored.float()
    if store.global_scale is not None:
        read = read / store.global_scale
    assert torch.equal(read, scales)


def test_a_search_tries_other_storable_scales(store: ScaleStore) -> None:
    scales = store.spanning(WEIGHT.abs().amax(0), FOUR.largest)
    tried = list(store.around(scales))
    assert torch.equal(tried[0], scales)
    for each in tried:
        assert torch.equal(store.storable(each), each)
    assert store.near(scales, 1.0).equal(scales)


@pytest.mark.parametrize("name", ["e8m0", "e4m3"])
def test_neighbours_are_the_next_ones(name: str) -> None:
    store = STORES[name]
    scales = store.storable(torch.full((1,), 0.003))
    above, below = store.near(scales, 1.06), store.near(scales, 0.94)
    assert below < scales < above
    assert torch.equal(store.near(above, 0.94), scales)
    between = (above + scales) / 2
    assert store.storable(between) in (above, scales)


def test_one_scale_of_all_scales_for_fused_weights() -> None:
    small, large = WEIGHT, WEIGHT * 7
    together = NestedScales.of([small, large], FOUR.largest)
    assert torch.equal(together.global_scale, NestedScales.of([large], FOUR.largest).global_scale)
    most = together.spanning(large.abs().amax().reshape(1), FOUR.largest)
    assert EIGHT.largest / 2 < together.stored(most).float() <= EIGHT.largest
    exponent = torch.log2(together.global_scale)
    assert exponent == exponent.round()  # so its reciprocal is exact


@pytest.mark.parametrize("weight", [torch.zeros(4, 16), torch.full((4, 16), 1e-42)])
def test_weights_of_nothing_have_a_scale(weight: torch.Tensor) -> None:
    store = NestedScales.of([weight], FOUR.largest)
    assert torch.isfinite(store.global_scale).all()
    scales, _ = FloatGrid(FOUR, store).span(weight)
    assert torch.isfinite(weight / scales).all()


def test_the_largest_weight_has_the_largest_exponent() -> None:
    for largest in (4.0, 4.5, 6.0, 7.9):
        scale = PowerScales().spanning(torch.tensor([largest]), FOUR.largest)
        assert scale == 1.0  # the rule of the standard: floor(log2 largest) - 2


def test_a_search_tries_the_factors_that_it_is_given() -> None:
    offered = PlainScales(torch.float32, factors=(1.0, 0.5, 0.25)).around(torch.tensor([4.0, 1.0]))
    assert [scales.tolist() for scales in offered] == [[4.0, 1.0], [2.0, 0.5], [1.0, 0.25]]
