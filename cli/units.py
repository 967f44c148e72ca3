"""Figures with their units, for people."""

import math

GIB = 2**30


def size(count: float) -> str:
    """Bytes with a decimal unit: `1.24 GB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def gib(count: int) -> str:
    """Bytes as GiB, to three figures or a tenth."""
    return f"{count / GIB:.1f}" if count >= 10 * GIB else f"{count / GIB:.2f}"


def excess(count: int) -> str:
    """Bytes that are missing as GiB, never as none."""
    return gib(count) if count >= GIB / 100 else "under 0.01"


def duration(seconds: float) -> str:
    """`0.8 s`, `42 s`, `3 min 20 s`, `2 h 05 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    return (
        f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"
    )


def with_error(value: float | None, error: float | None) -> str:
    """`27.7 +- 1.2`, to two figures of the error, or `-` where nothing was measured."""
    if value is None:
        return "-"
    if not error:
        return f"{value:.4g}"
    decimals = max(0, 1 - math.floor(math.log10(error)))
    return f"{value:.{decimals}f} +- {error:.{decimals}f}"
