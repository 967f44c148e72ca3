"""The expected KL of every option of a group, from the few that are measured."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import exp, log

from quantkit.core.scheme import Scheme
from quantkit.pipeline.choices import Choice

Measured = tuple[float, float | None]
"""The loss of an option, and its KL in nats where measured."""
USUAL = 4
"""Bits of a weight at which most groups end: solved, and its KL measured, where it is offered."""


@dataclass(frozen=True)
class Solved:
    """A choice with the schemes that are solved, and which of these have their KL measured."""

    choice: Choice
    probed: tuple[int, ...]


def to_solve(choice: Choice) -> Solved:
    """The least and the most bits of each kind of scheme, and 4; the losses of others lie between.

    KL is measured where the loss is largest, as KL there is farthest above the noise; of fewer than
    4 bits apart, as KL grows faster than the loss there.
    """
    widths: dict[Scheme, list[int]] = {}
    for scheme in filter(None, choice.schemes):
        widths.setdefault(replace(scheme, bits=0), []).append(scheme.bits)
    kept = tuple(
        s
        for s in choice.schemes
        if s is None or s.bits == USUAL or s.bits in _ends(widths[replace(s, bits=0)])
    )
    order = sorted((s.bits, -(s.group_size or 1 << 30), j) for j, s in enumerate(kept) if s)
    usual = [j for bits, _, j in order if bits >= USUAL]
    probed = dict.fromkeys([j for _, _, j in order[:1]] + usual[:1])
    return Solved(replace(choice, schemes=kept), tuple(probed))


def _ends(widths: list[int]) -> tuple[int, int]:
    return min(widths), max(widths)


def costs(
    schemes: Sequence[Scheme | None], solved: Solved, measured: Sequence[Measured]
) -> list[float]:
    """Expected KL in nats of each of `schemes`, from what was measured of those solved."""
    known = sorted((loss, kl) for loss, kl in measured if kl is not None and loss > 0)
    if not known:
        return [0.0] * len(schemes)
    losses = {s: x for s, (x, _) in zip(solved.choice.schemes, measured, strict=True)}
    return [_kl(_loss(scheme, losses), known) if scheme else 0.0 for scheme in schemes]


def _loss(scheme: Scheme, solved: dict[Scheme | None, float]) -> float:
    """Its loss if solved, else from the next widths: its logarithm falls with bits like a line."""
    if scheme in solved:
        return solved[scheme]
    own = [s for s in solved if s and replace(s, bits=scheme.bits) == scheme]
    fewer = max((s for s in own if s.bits < scheme.bits), key=lambda s: s.bits)
    more = min((s for s in own if s.bits > scheme.bits), key=lambda s: s.bits)
    part = (scheme.bits - fewer.bits) / (more.bits - fewer.bits)
    return _between(solved[fewer], solved[more], part)


def _kl(loss: float, known: Sequence[tuple[float, float]]) -> float:
    """In proportion to the loss; between two that were measured by a power of it."""
    for (low, least), (high, most) in pairwise(known):
        if low < loss < high and 0 < least < most:
            return _between(least, most, log(loss / low) / log(high / low))
    near, kl = min(known, key=lambda pair: abs(log(pair[0] / loss)) if loss > 0 else 0.0)
    return kl * loss / near


def _between(low: float, high: float, part: float) -> float:
    """The geometric mean that lies `part` of the way from `low` to `high`."""
    return exp((1 - part) * log(low) + part * log(high)) if low > 0 < high else 0.0
