"""The best scale of each group of integers, exactly, beside the search that quantkit makes.

    python exact_scales.py MODEL OUT --bits 2 3 4 --group-size 64 --samples 16

Between two breakpoints (k - 1/2) / |w_j| of 1 / scale the codes of a group stay the same, and the
best scale for them is S1 / S2 with S1 = sum h w q and S2 = sum h q^2, which leaves
sum h w^2 - S1^2 / S2. Cumulative sums over the sorted breakpoints give the optimum over all scales,
for both signs, and with zero points for each of them. It is rounded to what can be stored, as the
search's is. Prints squared errors weighted by diag H, seconds, and the KL of both artifacts.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch

import quantkit
from quantkit.grid import nearest
from quantkit.grid.affine import AffineGrid
from quantkit.grid.rounding import Found, steps_of
from quantkit.grid.search import search_scales

Search = Callable[[torch.Tensor, torch.Tensor, AffineGrid], Found]
COLUMNS = 4096
"""Groups at a time."""


def best(
    panel: torch.Tensor, weights: torch.Tensor, low: int, high: int
) -> tuple[torch.Tensor, ...]:
    """Scales > 0 and what they explain, S1^2 / S2, fp32 (n,) each, for steps from low to high.

    panel, weights: fp32 (group_size, n).
    """
    size = panel.abs()
    most = torch.where(panel > 0, high, -low)
    steps = torch.arange(1, max(high, -low) + 1)[:, None, None]
    reached = (steps <= most) & (size > 0)
    at = torch.where(reached, (steps - 0.5) / size, torch.inf).flatten(0, 1)
    order = at.argsort(0)
    more = {
        "s1": (weights * size).expand(len(steps), -1, -1),
        "s2": weights * (2 * steps - 1),
    }
    s1, s2 = (
        torch.where(reached, each, 0).flatten(0, 1).gather(0, order).double().cumsum(0)
        for each in more.values()
    )
    explained, where = torch.where(s2 > 0, s1.square() / s2, 0).max(0)
    found = [each.gather(0, where[None])[0] for each in (s1, s2)]
    return (found[0] / found[1]).nan_to_num(1).float(), explained.float()


def exact(panel: torch.Tensor, weights: torch.Tensor, grid: AffineGrid) -> Found:
    """As `search_scales`, of a panel and weights fp32 (group_size, n)."""
    top, half = grid.top, 1 << (grid.bits - 1)
    zeros = [half] if grid.symmetric else list(range(1, top + 1))
    offers = []
    for zero in zeros:
        offers.append((*best(panel, weights, -zero, top - zero), zero))
        if grid.symmetric and grid.signed:
            scales, explained = best(-panel, weights, -zero, top - zero)
            offers.append((-scales, explained, zero))
    winner = torch.stack([explained for _, explained, _ in offers]).argmax(0)
    scales = torch.stack([scales for scales, _, _ in offers]).gather(0, winner[None])[0]
    found = torch.tensor([zero for *_, zero in offers])[winner].float()
    return grid.storable(scales), None if grid.symmetric else found


class Compared:
    """A search in place of quantkit's own: takes one of the two, and counts both."""

    def __init__(self, *, take_exact: bool) -> None:
        self.take_exact = take_exact
        self.errors, self.seconds = [0.0, 0.0], [0.0, 0.0]

    def __call__(self, panel: torch.Tensor, importance: torch.Tensor, grid: AffineGrid) -> Found:
        """As `search_scales`."""
        groups = importance.shape[1] if importance.ndim > 1 else 1
        weights = importance.reshape(len(panel), groups, 1)
        weights = weights.expand(-1, -1, panel.shape[1] // groups).reshape(panel.shape)
        found = []
        for index in range(2 if self.take_exact else 1):
            start = time.process_time()
            found.append(
                self.pieces(panel, weights, grid)
                if index
                else search_scales(panel, importance, grid)
            )
            self.seconds[index] += time.process_time() - start
            scales, zeros = found[-1]
            left = panel - scales * steps_of(panel, scales, zeros, grid)
            self.errors[index] += float((weights * left.square()).sum())
        return found[-1]

    def pieces(self, panel: torch.Tensor, weights: torch.Tensor, grid: AffineGrid) -> Found:
        """`exact` of some columns at a time."""
        parts = zip(panel.split(COLUMNS, 1), weights.split(COLUMNS, 1), strict=True)
        scales, zeros = zip(*(exact(*part, grid) for part in parts), strict=True)
        return torch.cat(scales), None if zeros[0] is None else torch.cat(zeros)


def run(args: argparse.Namespace, bits: int, *, symmetric: bool) -> str:
    """A line of the table."""
    kl, compared = [], Compared(take_exact=True)
    for search in (Compared(take_exact=False), compared):
        nearest.search_scales = search
        out = args.out / f"w{bits}-{symmetric}-{search.take_exact}"
        recipe = quantkit.build_recipe(
            "rtn",
            bits=bits,
            group_size=args.group_size,
            symmetric=symmetric,
            format="gptq-v2",
            samples=args.samples,
            sequence_length=512,
        )
        quantkit.quantize(args.model, out, recipe=recipe, evaluate=False)
        result = quantkit.evaluate(
            str(out), reference=args.model, text=args.text, windows=args.windows
        )
        kl.append(f"{result.kl.mean:.5f} +- {result.kl.standard_error:.5f}")
    ratio = compared.errors[1] / compared.errors[0]
    seconds = compared.seconds[1] / compared.seconds[0]
    kind = "sym" if symmetric else "asym"
    return f"W{bits} {kind}: error x {ratio:.4f}, seconds x {seconds:.0f}, KL {kl[0]} -> {kl[1]}"


def main() -> None:
    """Prints a line for each width, with and without zero points."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    parser.add_argument("--bits", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--group-size", type=int, default=64)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--text", default=None)
    parser.add_argument("--windows", type=int)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for bits in args.bits:
        for symmetric in (True, False):
            print(run(args, bits, symmetric=symmetric), flush=True)


if __name__ == "__main__":
    main()
