"""Sizes in bytes, as people write them."""

import re

from quantkit.core.errors import InputError

_UNITS = {"": 1, "B": 1} | {
    f"{prefix}{tail}": base**power
    for power, prefix in enumerate("KMGT", start=1)
    for tail, base in (("", 1000), ("B", 1000), ("IB", 1024))
}

FEWEST = 10**6
"""Smallest number of bytes without a unit; below it, the unit was probably forgotten."""


def parse_size(text: str | int, option: str = "") -> int:
    """Bytes: `5GB` is 5 * 10^9, `500MiB` is 500 * 2^20, a plain number is bytes.

    `option` is the prefix of a suggested value, such as `--size `.

    Raises:
        InputError: not a positive size, or a small number without a unit.
    """
    match = re.fullmatch(r"\s*([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([A-Za-z]{0,3})\s*", str(text))
    unit = _UNITS.get(match[2].upper()) if match else None
    size = int(float(match[1]) * unit) if match and unit else 0
    if size <= 0:
        raise InputError(f"`{text}` is not a valid size", hint=f"{option}5GB")
    if isinstance(text, str) and match and not match[2] and size < FEWEST:
        raise InputError(
            f"`{text}` has no unit",
            why="a number without a unit counts bytes, and this one is too small for that",
            hint=f"{option}{text.strip()}GB",
        )
    return size
