"""Sizes in bytes, as people write them."""

import re

from quantkit.core.errors import InputError

_UNITS = {"": 1, "B": 1} | {
    f"{prefix}{tail}": base**power
    for power, prefix in enumerate("KMGT", start=1)
    for tail, base in (("", 1000), ("B", 1000), ("IB", 1024))
}


def parse_size(text: str | int) -> int:
    """Bytes: `5GB` is 5 * 10^9, `500MiB` is 500 * 2^20, a plain number is bytes.

    Raises:
        InputError: not a positive size.
    """
    match = re.fullmatch(r"\s*([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([A-Za-z]{0,3})\s*", str(text))
    unit = _UNITS.get(match[2].upper()) if match else None
    size = int(float(match[1]) * unit) if match and unit else 0
    if size <= 0:
        raise InputError(f"`{text}` is no size", hint="a number with a unit, such as 5GB or 500MiB")
    return size
