"""Numbers as people read them; base.js does it for what the reader chooses."""

from collections.abc import Iterable
from decimal import ROUND_HALF_UP, Decimal
from math import floor, isfinite, log10
from unicodedata import category

UNITS = ("B", "kB", "MB", "GB", "TB")
SMALLEST_PLAIN = 1e-4
MINUS = "\u2212"


def fixed(value: float, decimals: int) -> str:
    """The number with that many decimals; ties away from zero, as JavaScript's toFixed."""
    step = Decimal(1).scaleb(-decimals)
    text = str(Decimal(value).quantize(step, rounding=ROUND_HALF_UP))
    return text.replace("-", MINUS)


def significant(value: float, digits: int = 3) -> str:
    """The number to that many digits: `0.0148`, `1.23`, `151`, and `2.81e-6` below 1e-4."""
    if value == 0 or not isfinite(value):
        return "0" if value == 0 else "-"
    if abs(value) < SMALLEST_PLAIN:
        mantissa, exponent = f"{abs(value):.{digits - 1}e}".split("e")
        return f"{MINUS if value < 0 else ''}{mantissa}e{int(exponent)}"
    return fixed(value, max(0, digits - 1 - floor(log10(abs(value)))))


def percent(fraction: float, digits: int = 3) -> str:
    """`95.1 %`."""
    return f"{significant(100 * fraction, digits)}\u00a0%"


def signed_percent(fraction: float) -> str:
    """`+1.84 %`, to two decimals."""
    return f"{'+' if fraction >= 0 else ''}{fixed(100 * fraction, 2)}\u00a0%"


def error(value: float) -> str:
    """A half-width or standard error to two digits, without the zero before the point."""
    return f"\u00b1{significant(value, 2).removeprefix('0') or '0'}"


def unit_of(sizes: Iterable[float | None]) -> tuple[str, int]:
    """The largest decimal unit of which the largest size is at least one, and its bytes."""
    largest = max((size for size in sizes if size), default=1)
    power = max((n for n in range(len(UNITS)) if 1000**n <= largest), default=0)
    return UNITS[power], 1000**power


def grouped(value: int) -> str:
    """Thousands apart by a narrow blank."""
    return f"{value:,}".replace(",", "\u202f")


def duration(seconds: float) -> str:
    """`0.8 s`, `42 s`, `3:20`, `2:05:10`."""
    if seconds < 10:
        return f"{fixed(seconds, 1)}\u00a0s"
    if seconds < 60:
        return f"{fixed(seconds, 0)}\u00a0s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def visible(text: str) -> str:
    """The text on one line, with control and direction characters shown as escapes."""
    plain = "".join(" " if category(c) == "Zs" else c for c in text.strip())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in plain)
