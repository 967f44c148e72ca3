import pytest

from quantkit.core.scheme import Scheme
from quantkit.runs.fit.problem import spec_of
from quantkit.runs.fit.schemes import schemes_of


@pytest.mark.parametrize("sizes", [(64,), (64, None), (32, 128)])
def test_group_sizes_are_those_wanted_or_else_the_grids_own(sizes: tuple[int | None, ...]) -> None:
    found = schemes_of((8, 4), sizes, ("int", "fp8", "mxfp8", "mxfp4", "nvfp4"))
    assert set(found) == {
        *(Scheme("int", bits, size) for bits in (8, 4) for size in sizes),
        Scheme("fp8", 8, None),
        Scheme("mxfp8", 8, 32),
        Scheme("mxfp4", 4, 32),
        Scheme("nvfp4", 4, 16),
    }


def test_a_recipe_names_the_grid_that_weights_are_rounded_to() -> None:
    stored = Scheme("int", 4, 32, rounded_to="mxfp4")
    assert spec_of(stored).grid == "mxfp4"
    assert spec_of(stored.read).grid == "int"
