"""What every grid of the registry owes its callers."""

import subprocess
import sys
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch

from quantkit.core import registry
from quantkit.core.grid import Grid, rounding_of
from quantkit.core.scheme import Activation, Scheme
from quantkit.grid.nearest import nearest

GRIDS: tuple[Grid, ...] = tuple(
    registry.load("grids", name, "GRID") for name in registry.names("grids")
)
WEIGHT = torch.randn(64, 256, generator=torch.Generator().manual_seed(1))
EXAMPLES = [(grid, scheme) for grid in GRIDS for scheme in grid.examples]
SCHEMES = [scheme for _, scheme in EXAMPLES]
ROUNDED = [scheme for grid, scheme in EXAMPLES if not grid.method]
CHANGES: tuple[dict[str, Any], ...] = (
    {"symmetric": False},
    {"double_quant": True},
    *({"rows": rows} for rows in (None, 128)),
    *({"group_size": size} for size in (None, 16, 48)),
    *({"activation": activation} for activation in get_args(Activation)),
)
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


def str_of(value: Grid | Scheme) -> str:
    return value.name if isinstance(value, Grid) else value.label()


@pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: grid.name)
def test_an_entry_is_complete(grid: Grid) -> None:
    assert registry.load("grids", grid.name, "GRID") is grid
    assert grid.summary
    assert grid.bits
    assert all(a > b for a, b in zip(grid.group_sizes, grid.group_sizes[1:], strict=False))
    assert {scheme.grid for scheme in grid.examples} == {grid.name}
    own = {grid.scale_dtype is None, grid.dequantize is None}
    assert own == {bool(grid.stored_as)}, "it states how it is stored, or what stores it"
    assert not grid.method or grid.method in registry.names("methods")


@pytest.mark.parametrize(("grid", "scheme"), EXAMPLES, ids=str_of)
def test_examples_are_its_own_and_fit_together(grid: Grid, scheme: Scheme) -> None:
    assert scheme.kind is grid
    assert scheme.bits in grid.bits
    for each in (scheme, scheme.stored()):
        assert each.kind is grid
        assert each.contradiction() is None
        assert each.label() == scheme.label()


@pytest.mark.parametrize("scheme", SCHEMES, ids=str_of)
def test_a_fault_of_a_changed_example_has_a_way_out(scheme: Scheme) -> None:
    faults = [replace(scheme, **change).stored().contradiction() for change in CHANGES]
    assert any(faults)
    for fault in filter(None, faults):
        what, _, hint = fault.partition("; try: ")
        assert what
        assert hint.startswith("--")


@pytest.mark.parametrize(("grid", "scheme"), EXAMPLES, ids=str_of)
def test_what_stores_it_can_hold_its_codes(grid: Grid, scheme: Scheme) -> None:
    found = scheme.stored()
    if not grid.stored_as:
        assert found == scheme
        return
    assert (found.grid, found.rounded_to) == (grid.stored_as, grid.name)
    assert found.stored() == found
    assert found.read == replace(scheme, grid=grid.stored_as)
    assert found.read.contradiction() is None
    assert found.bits in found.storage.bits
    assert found.scale_dtype("bfloat16") == found.read.scale_dtype("bfloat16")


@pytest.mark.parametrize("scheme", ROUNDED, ids=str_of)
@pytest.mark.parametrize("search", [True, False])
def test_codes_stand_for_the_nearest_numbers(scheme: Scheme, search: bool) -> None:
    scheme = scheme.stored()
    weight = WEIGHT * torch.rand(len(WEIGHT), 1, generator=torch.Generator().manual_seed(2))
    kind = getattr(torch, scheme.scale_dtype("bfloat16"))
    rounding = rounding_of(scheme, kind, [weight])
    found = nearest(weight, torch.ones(256) if search else None, scheme, rounding)
    assert int(found.codes.amax()) < 1 << scheme.bits
    assert found.scales.dtype == kind
    values = found.dequantize()
    codes = sorted(set(found.codes.flatten().tolist()))
    assert len(codes) > 2
    assert torch.equal(replace(found, scheme=scheme.read).dequantize(), values)
    error, best = (values - weight).abs(), torch.full_like(weight, torch.inf)
    for code in codes if scheme.rounded_to else range(1 << scheme.bits):
        other = replace(found, codes=torch.full_like(found.codes, code)).dequantize()
        best = torch.minimum(best, (other.nan_to_num(torch.inf) - weight).abs())
    far = int((error > best * (1 + 1e-5) + 1e-12).sum())
    assert far == 0, (
        f"{far} codes are not the nearest as {scheme.storage.name} reads them: its units?"
    )


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
