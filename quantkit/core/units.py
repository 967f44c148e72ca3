"""Numbers with units as text; sizes are in decimal units (GB are 10^9 bytes)."""

import math

GB = 10**9
UNIT_NOTE = "GB are 10^9 bytes; nvidia-smi and engines' logs count GiB, 1.074 GB each"
UNITS = ((1, "seconds"), (60, "minutes"), (3600, "hours"), (86400, "days"))


def size(count: float) -> str:
    """Bytes with a decimal unit: `1.24 GB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def gigabytes(count: int) -> str:
    """Bytes as a number of GB, for a column: to a hundredth, or from 10 on a tenth."""
    return f"{count / GB:.1f}" if count >= 10 * GB else f"{count / GB:.2f}"


def excess(count: int) -> str:
    """Missing bytes in GB; `under 0.01` instead of 0.00."""
    return gigabytes(count) if count >= GB / 100 else "under 0.01"


def span(seconds: tuple[float, float]) -> str:
    """Fewest and most seconds: `2.1 to 8.8 minutes`."""
    least, most = seconds
    unit, name = next((u, n) for u, n in UNITS if most < 100 * u or n == "days")
    return f"{least / unit:.2g} to {most / unit:.2g} {name}"


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
