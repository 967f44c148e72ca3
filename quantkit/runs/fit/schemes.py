"""The schemes that `fit` chooses from, checked before torch is loaded."""

from collections.abc import Iterable, Iterator, Sequence

from quantkit.core import registry
from quantkit.core.errors import InputError
from quantkit.core.grid import Grid
from quantkit.core.method import Method
from quantkit.core.scheme import Scheme

METHOD = "gptq"
BITS = (2, 3, 4, 5, 6, 7, 8)
GROUP_SIZES = (32, 64, 128, None)
GRIDS = ("int", "nvfp4")
"""Without activations in floats, FP8, MXFP8 and MXFP4 lose more than integers of fewer bits."""


def schemes_of(
    bits: Sequence[int] = BITS,
    group_sizes: Sequence[int | None] = GROUP_SIZES,
    grids: Sequence[str] = GRIDS,
) -> tuple[Scheme, ...]:
    """Every width of every grid; integers with every group size, of which None is a whole channel.

    Raises:
        InputError: no width, grid or group size, or one that the method does not support.
    """
    method: Method = registry.load("methods", METHOD, "METHOD")
    legal = sorted({width for _, width in method.pairs})
    if not bits or set(bits) - set(legal):
        raise _unknown("--bits", bits, legal)
    known = dict.fromkeys(grid for grid, _ in method.pairs)
    if not grids or set(grids) - set(known):
        raise _unknown("--grid", grids, known)
    if not group_sizes:
        raise _unknown("--group-size", group_sizes, ["32", "channel"])
    found = tuple(s for name in grids for s in _of_grid(name, bits, group_sizes))
    if not found:
        raise InputError(
            f"--grid {','.join(grids)} has none of the widths {','.join(map(str, bits))}",
            hint="--grid int",
        )
    return found


def _of_grid(name: str, bits: Sequence[int], group_sizes: Sequence[int | None]) -> Iterator[Scheme]:
    """The schemes of a grid: those of the group sizes that it can have, else of its own."""
    grid: Grid = registry.load("grids", name, "GRID")
    for width in bits:
        if width in grid.bits:
            wanted = [Scheme(name, width, size).stored() for size in group_sizes]
            legal = [scheme for scheme in wanted if scheme.contradiction() is None]
            own = (Scheme(name, width, size).stored() for size in grid.group_sizes or (None,))
            yield from legal or own


def _unknown(option: str, given: Sequence[object], known: Iterable[object]) -> InputError:
    stated = ",".join(map(str, given)) or "none"
    hint = f"{option} {','.join(map(str, known))}"
    return InputError(f"{option} {stated} is not supported", hint=hint)
