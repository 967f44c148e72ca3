"""What the reader can choose: limits, context, sequences, and what the page opens with."""

from quantkit.eval.report.figures import significant, unit_of
from quantkit.eval.report.study import CONTEXT_TOKENS, Axis, Load, Study

GIB = 1024**3
CARDS = tuple(GIB * n for n in (4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 141, 192))
CONTEXTS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
SEQUENCES = (1, 2, 4, 8, 16, 32, 64)
MAX_KLS = (0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5)


def default_load(study: Study) -> Load:
    """The workload that the results state, else one sequence of 2048 tokens.

    Without a stated limit it is the largest usual size that the original does not fit in: the
    question that brings people to quantization.
    """
    stated = study.workload
    axis: Axis = "memory" if study.kv_bytes_per_token else "disk"
    load = Load(
        axis,
        context_tokens=int(stated.get("context_tokens") or CONTEXT_TOKENS),
        sequences=int(stated.get("sequences") or 1),
        max_kl=stated.get("max_kl"),
    )
    limit = stated.get("memory_bytes") if axis == "memory" else None
    if limit is None and study.reference and (whole := study.size_at(study.reference, load)):
        smallest = min(filter(None, (study.size_at(b, load) for b in study.builds)), default=whole)
        below = [size for size in limits(smallest, whole) if smallest <= size < whole]
        limit = max(below, default=None)
    return Load(axis, limit, load.context_tokens, load.sequences, load.max_kl)


def limits(smallest: float, largest: float) -> list[int]:
    """Usual sizes around a range of bytes: cards from 4 GiB on, 2^k and 1.5 * 2^k below."""
    low = sorted(part * 2**k // 2 for k in range(11, 33) for part in (2, 3))
    ladder = [size for size in low if size < 4 * GIB] + list(CARDS)
    return [size for size in ladder if smallest / 2 <= size <= 4 * largest]


def size_label(size: int) -> str:
    """`12 GiB`."""
    name, factor = unit_of([size])
    text = significant(size / factor)
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} {name}"
