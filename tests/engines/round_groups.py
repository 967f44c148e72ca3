"""Run where Triton is: its programs for a group of columns, interpreted, against torch's operators.

`python round_groups.py job.json`, where the job says where quantkit is; the answer lies beside it.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any, Literal

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

FACTORS = (1.0, 0.94, 1.06)
ROWS = 60
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
TENSORS = ("couplings", "pivots")
PARTS = ("codes", "scales", "zeros")
KINDS = ((True, True), (True, False), (False, True))  # symmetric, signed


class SumsInOrder(TorchFunctionMode):
    """Adds where torch's path multiplies matrices, in the order in which the programs add."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.Tensor.__matmul__, torch.Tensor.matmul) and args[0].ndim == 1:
            terms = args[0][:, None] * args[1]
            return torch.from_numpy(np.sum(terms.numpy(), 0))
        if func in (torch.Tensor.addmv_, torch.Tensor.addmm_):
            moved, a, b = args
            for i in reversed(range(a.shape[1])):
                moved += a[:, i] * b[i] if b.ndim == 1 else a[:, i, None] * b[i]
            return moved
        return func(*args, **(kwargs or {}))


class Launches(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts torch's operators but for views, and runs of Triton's programs."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))

    def counted(self, program: Any) -> Any:
        """The program; what the interpreter asks of torch does not count."""

        class Counted:
            def __getitem__(_self, programs: Any) -> Callable[..., None]:  # noqa: N805
                def run(*args: Any, **options: Any) -> None:
                    self.count += 1
                    with _disable_current_modes():
                        program[programs](*args, **options)

                return run

        return Counted()


@contextmanager
def interpreted() -> Iterator[None]:
    """Tensors on the CPU take the programs, too."""
    from quantkit.grid import kernel

    before, kernel.DEVICES = kernel.DEVICES, (*kernel.DEVICES, "cpu")
    try:
        yield
    finally:
        kernel.DEVICES = before


def weights_of(size: int, seed: int) -> torch.Tensor:
    """Columns (size, ROWS) of every kind: of each row the 12th next is of the same kind."""
    generator = torch.Generator().manual_seed(seed)
    columns = torch.randn(size, ROWS, generator=generator)
    kinds = [columns[:, kind::12] for kind in range(12)]
    kinds[1].zero_()
    kinds[2].abs_()
    kinds[3].abs_().neg_()
    kinds[4].mul_(1e30)
    kinds[5].mul_(1e-30)
    kinds[6].mul_(1e-42)
    kinds[7][size // 3] *= 40
    kinds[8].fill_(0.37)
    kinds[9].mul_(2).round_().mul_(0.125)
    kinds[10].mul_(3e4)
    return columns


def problem(size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Weights (2 size, ROWS) and the couplings and pivots of a correlated Hessian."""
    from quantkit.grid.ldlq import factor

    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(4 * size, 2 * size, generator=generator)
    x += torch.randn(4 * size, 1, generator=generator)
    x *= torch.rand(2 * size, generator=generator) + 0.1
    feedback = factor(x.T @ x, torch.arange(2 * size))
    assert feedback is not None
    return weights_of(2 * size, seed), feedback.couplings, feedback.pivots


def rounded(state: type, problem: Any, grid: Any, near: Any) -> list[torch.Tensor]:
    """Codes, errors, scales (and zeros) of the first group, as if the second one moved it."""
    weights, couplings, pivots = problem
    size = len(weights) // 2
    rows = state(weights, couplings, pivots, grid, size, near)
    rows.targets[:size] += weights[size:].abs() * 0.1 * (weights[:size] != 0)
    rows.round_group(0, size)
    found = [rows.codes[:size], rows.targets[:size], rows.scales[0]]
    return found if rows.zeros is None else [*found, rows.zeros[0]]


def groups() -> Iterator[dict[str, Any]]:
    """A group of every grid: how many rows differ, with sums in one order and in torch's."""
    from quantkit.grid import ldlq
    from quantkit.grid.affine import AffineGrid
    from quantkit.grid.group_kernel import GroupRows
    from quantkit.grid.search import Near

    grids = product((2, 3, 4, 8), KINDS, DTYPES)
    for seed, (bits, (symmetric, signed), dtype) in enumerate(grids):
        size = {0: 128, 1: 64}.get(seed % 12, 32)
        grid = AffineGrid(bits, symmetric, dtype, signed)
        near = Near(grid, search=seed % 5 > 0, factors=FACTORS if seed % 3 else (1.0,))
        given = problem(size, seed)
        with interpreted():
            found = rounded(GroupRows, given, grid, near)
        expected = rounded(ldlq._Rows, given, grid, near)
        with SumsInOrder():
            twin = rounded(ldlq._Rows, given, grid, near)
        yield {
            "case": f"{near}, groups of {size}",
            "rows": ROWS,
            "equal": all(torch.equal(a, b) for a, b in zip(found, twin, strict=True)),
            "other rows": rows_that_differ(found, expected),
            "worse": float(
                (losses(found[1], given) / losses(expected[1], given)).nan_to_num(1).max()
            ),
        }


def rows_that_differ(found: list[torch.Tensor], expected: list[torch.Tensor]) -> int:
    """Rows with another code, or zero, or a scale that differs by more than 1e-4 of it."""
    far = (found[2] / expected[2] - 1).abs() > 1e-4
    return int((far | (found[0] != expected[0]).any(0)).sum())


def losses(errors: torch.Tensor, given: Any) -> torch.Tensor:
    """Each row's share of the loss, fp64 (ROWS,), of the errors (size, ROWS) of the first group."""
    weights, couplings, pivots = (each.double() for each in given)
    size = len(weights) // 2
    shift = weights[size:].abs() * 0.1 * (weights[:size] != 0)
    residual = shift + couplings[:size, :size].T @ errors.double()
    lost: torch.Tensor = pivots[:size] @ residual.square()
    return lost


def experts() -> dict[str, Any]:
    """Two experts in one, the second without tokens, against each alone; launches a group.

    The rows are part of a larger tensor, and take two programs of an expert.
    """
    from quantkit.grid import group_kernel, group_program
    from quantkit.grid.affine import AffineGrid
    from quantkit.grid.ldlq import Feedback, factor, ldlq
    from quantkit.grid.search import Near

    size, d, n = 32, 64, 13
    group_kernel.ROWS = 8
    near = Near(AffineGrid(4, symmetric=False, dtype=torch.float16), search=True, factors=FACTORS)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2 * d, d, generator=generator) + torch.randn(2 * d, 1, generator=generator)
    order = torch.arange(d)
    each = [f for f in (factor(h, order) for h in (x.T @ x, torch.eye(d))) if f]
    columns = torch.randn(2, d, 2 * n, generator=generator)[..., :n]
    alone = [ldlq(columns[i], feedback, near.grid, size, near) for i, feedback in enumerate(each)]
    couplings, pivots = (torch.stack([getattr(f, name) for f in each]) for name in TENSORS)
    launches = Launches()
    programs = group_program.search, group_program.trials
    group_program.search, group_program.trials = (launches.counted(each) for each in programs)
    with interpreted(), launches:
        found = ldlq(columns, Feedback(order, couplings, pivots, pivots), near.grid, size, near)
    group_program.search, group_program.trials = programs
    equal = [
        part is not None and own is not None and torch.equal(part[i], own)
        for i, expected in enumerate(alone)
        for part, own in zip(found, expected, strict=True)
    ]
    with Launches() as torchs:
        ldlq(columns[0], each[0], near.grid, size, near)
    groups = d // size
    return {
        "equal": equal,
        "launches": launches.count / groups,
        "launches of torch": torchs.count / groups,
    }


def side_by_side() -> bool:
    """Whether groups that are searched together get the scales and zeros that each gets alone."""
    from quantkit.grid.affine import AffineGrid
    from quantkit.grid.search import search_scales

    grid = AffineGrid(4, symmetric=False, dtype=torch.bfloat16)
    panels = [weights_of(64, seed) for seed in range(3)]
    importance = torch.rand(64, 3)
    with interpreted():
        together = search_scales(torch.cat(panels, 1), importance, grid)
        alone = [search_scales(panel, importance[:, i], grid) for i, panel in enumerate(panels)]
    expected = [torch.cat([found[part] for found in alone]) for part in (0, 1)]  # type: ignore[misc]
    return all(torch.equal(a, b) for a, b in zip(together, expected, strict=True))  # type: ignore[arg-type]


def solves() -> Iterator[tuple[str, bool]]:
    """Whole solves by either path: whether codes, scales and zeros are equal."""
    from quantkit.core.grid import rounding_of
    from quantkit.core.scheme import Scheme
    from quantkit.methods import gptq
    from quantkit.stats.inputs import InputStats

    torch.manual_seed(1)
    weights = [torch.randn(9, 64), torch.randn(12, 64)]
    x = torch.randn(256, 64) + torch.randn(256, 1)
    stats = InputStats(x.T @ x, x[:4], x.abs().amax(0), x[:8], 256, mixes_tokens=True)
    cases: tuple[tuple[Literal["natural", "group"], Scheme], ...] = (
        ("natural", Scheme(group_size=32, symmetric=False)),
        ("group", Scheme(group_size=32, bits=3)),
        ("group", Scheme(group_size=None)),
        ("group", Scheme(group_size=16)),
    )
    for order, scheme in cases:
        options = gptq.GptqOptions(order=order)
        grid = rounding_of(scheme, torch.bfloat16, weights)
        expected = gptq.quantize(weights, stats, scheme, grid, options)
        with interpreted():
            found = gptq.quantize(weights, stats, scheme, grid, options)
        pairs = zip(found, expected, strict=True)
        parts = [(getattr(a.qtensor, p), getattr(b.qtensor, p)) for a, b in pairs for p in PARTS]
        yield f"{order} {scheme}", all(a is b or torch.equal(a, b) for a, b in parts)


def choices() -> dict[str, bool]:
    """Whether the programs take columns on the CPU, and on a device that they are for."""
    from quantkit.grid.affine import AffineGrid
    from quantkit.grid.kernel import kernel_for

    grid = AffineGrid(4, symmetric=True, dtype=torch.float16)
    found = {"cpu": kernel_for(torch.zeros(128, 3), 128, grid) is not None}
    with interpreted():
        for size in (16, 32, 64, 128, 576):
            found[str(size)] = kernel_for(torch.zeros(size, 3), size, grid) is not None
        found["fp64"] = kernel_for(torch.zeros(128, 3).double(), 128, grid) is not None
    return found


def main() -> None:
    """All comparisons, as {name: results}."""
    path = Path(sys.argv[1])
    sys.path.append(json.loads(path.read_text())["package"])
    from quantkit.grid import group_kernel, group_program

    torch.set_num_threads(1)
    group_kernel.ROWS = 64  # rows do not know each other, and each program takes a second here
    for name in ("_nearest", "_steps", "_storable", "_span", "_offer", "_refit"):
        # A program's functions are called as they are: the interpreter patches Triton at each call.
        setattr(group_program, name, getattr(group_program, name).fn)
    answer = {
        "choices": choices(),
        "groups": list(groups()),
        "side by side": side_by_side(),
        "solves": list(solves()),
        "experts": experts(),
    }
    path.with_name("answer.json").write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
