"""What the reader can choose: limits, context, sequences, and what the page opens with."""

from collections.abc import Iterator
from dataclasses import dataclass

from quantkit.core.units import GB
from quantkit.eval.report.numbers import significant, unit_of
from quantkit.eval.report.study import CONTEXT_TOKENS, Axis, Study, Target

GIB = 2**30
CARDS = {GIB * n: n for n in (4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 141, 192)}
"""Bytes of usual GPUs and the GB that their names state: a "24 GB" card holds 24 GiB, 25.8 GB."""
STEPS = (1, 1.5, 2, 3, 4, 6, 8)
"""Sizes below those of cards, in each power of ten."""
CONTEXTS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
SEQUENCES = (1, 2, 4, 8, 16, 32, 64)
MAX_KLS = (0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5)


def default_target(study: Study) -> Target:
    """The workload that the results state, else one sequence of 2048 tokens.

    Without a stated limit it is the largest usual size that the original does not fit in: the
    question that brings people to quantization.
    """
    stated = study.workload
    axis: Axis = "memory" if study.kv_bytes_per_token else "disk"
    target = Target(
        axis,
        context_tokens=int(stated.get("context_tokens") or CONTEXT_TOKENS),
        sequences=int(stated.get("sequences") or 1),
        max_kl=stated.get("max_kl"),
    )
    limit = stated.get("memory_bytes") if axis == "memory" else None
    if limit is None and study.reference and (whole := study.size_at(study.reference, target)):
        sizes = (study.size_at(build, target) for build in study.builds)
        smallest = min(filter(None, sizes), default=whole)
        below = [size for size in limits(smallest, whole) if smallest <= size < whole]
        limit = max(below, default=None)
    return Target(axis, limit, target.context_tokens, target.sequences, target.max_kl)


@dataclass(frozen=True)
class Offer:
    """The values of each choice on the page; None is no limit."""

    limits: tuple[int | None, ...]
    contexts: tuple[int, ...]
    sequences: tuple[int, ...]
    max_kls: tuple[float | None, ...]

    @property
    def tokens(self) -> tuple[int, ...]:
        """Tokens of all sequences together: sizes depend on nothing else of the two choices."""
        return tuple(sorted({n * m for n in self.contexts for m in self.sequences}))

    def targets(self, axis: Axis) -> Iterator[Target]:
        """Every target on an axis: tokens (one number on disk), then limits, then limits of KL."""
        for tokens in self.tokens if axis == "memory" else (0,):
            for limit in self.limits:
                for max_kl in self.max_kls:
                    yield Target(axis, limit, tokens, 1, max_kl)


def offer(study: Study, target: Target) -> Offer:
    """The usual values around those of `target`."""
    sizes = [size for b in study.everything if (size := study.size_at(b, target)) is not None]
    steps = limits(min(sizes), max(sizes)) if sizes else []
    steps = sorted({*steps, *([target.limit_bytes] if target.limit_bytes else [])})
    max_kls = sorted({*MAX_KLS, *([target.max_kl] if target.max_kl else [])})
    return Offer(
        limits=(None, *steps),
        contexts=tuple(sorted({*CONTEXTS, target.context_tokens})),
        sequences=tuple(sorted({*SEQUENCES, target.sequences})),
        max_kls=(None, *max_kls),
    )


def limits(smallest: float, largest: float) -> list[int]:
    """Usual sizes around a range of bytes: those of cards, and round decimal ones below."""
    low = [int(step * 10**power) for power in range(3, 10) for step in STEPS]
    ladder = [size for size in low if size < 4 * GB] + list(CARDS)
    return [size for size in ladder if smallest / 2 <= size <= 4 * largest]


def size_label(size: int) -> str:
    """`600 MB`, and for a card its name too: `25.8 GB (24 GB card)`."""
    name, factor = unit_of([size])
    text = significant(size / factor)
    short = f"{text.rstrip('0').rstrip('.') if '.' in text else text} {name}"
    return f"{short} ({CARDS[size]} GB card)" if size in CARDS else short
