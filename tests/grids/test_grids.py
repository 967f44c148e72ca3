"""What every grid of the registry owes its callers."""

import subprocess
import sys

import pytest

from quantkit.core import registry
from quantkit.core.grid import Grid
from quantkit.core.scheme import Scheme

GRIDS: tuple[Grid, ...] = tuple(
    registry.load("grids", name, "GRID") for name in registry.names("grids")
)
LEGAL = [
    Scheme("int", 4, 64),
    Scheme("int", 8, None, activation="int8-token"),
    Scheme("nf4", 4, 64, double_quant=True),
    Scheme("fp8", 8, None, activation="fp8-token"),
    Scheme("fp8", 8, None, activation="fp8-tensor", rows=None),
    Scheme("fp8", 8, 128, activation="fp8-group128", rows=128),
    Scheme("mxfp8", 8, 32),
    Scheme("mxfp4", 4, 32),
    Scheme("nvfp4", 4, 16, activation="nvfp4"),
]
ILLEGAL = [
    Scheme("int", 4, 64, rows=128),
    Scheme("int", 8, None, activation="fp8-token"),
    Scheme("nf4", 4, 64, symmetric=False),
    Scheme("fp8", 8, 64),
    Scheme("fp8", 8, None, activation="int8-token"),
    Scheme("fp8", 8, None, activation="fp8-tensor"),
    Scheme("mxfp8", 8, 64),
    Scheme("mxfp8", 8, 32, activation="fp8-token"),
    Scheme("mxfp4", 4, 32, activation="nvfp4"),
    Scheme("mxfp4", 4, 32, symmetric=False),
    Scheme("nvfp4", 4, 16, activation="int8-token"),
    Scheme("nvfp4", 4, None),
    Scheme("fp8", 8, None, double_quant=True),
]


@pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: grid.name)
def test_an_entry_is_complete(grid: Grid) -> None:
    assert registry.load("grids", grid.name, "GRID") is grid
    assert grid.summary
    assert grid.bits
    assert all(a > b for a, b in zip(grid.group_sizes, grid.group_sizes[1:], strict=False))


@pytest.mark.parametrize("scheme", LEGAL, ids=Scheme.label)
def test_what_fits_together_is_taken(scheme: Scheme) -> None:
    assert scheme.contradiction() is None
    assert scheme.label()


@pytest.mark.parametrize("scheme", ILLEGAL, ids=str)
def test_what_does_not_is_told_with_a_way_out(scheme: Scheme) -> None:
    what, _, hint = (scheme.contradiction() or "").partition("; try: ")
    assert what
    assert hint.startswith("--")


def test_grids_load_without_torch() -> None:
    program = (
        "import sys\n"
        "from quantkit.core import registry\n"
        "for name in registry.names('grids'):\n"
        "    registry.load('grids', name, 'GRID')\n"
        "assert not {'torch', 'numpy'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
