"""Strict JSON: no duplicate keys, no NaN, bounded size and depth."""

import json
import math
from collections import Counter
from typing import Any

MAX_DEPTH = 64


def loads(data: bytes, *, max_bytes: int, nested: bool = True, infinite: bool = False) -> Any:
    """Parse `data`.

    Python's own parser takes the last of two equal keys, accepts NaN and 1e999, and overflows its
    stack on deep nesting. With `nested` False the caller checks the depth. `infinite`: Infinity is
    read as the object that transformers 5 writes for it.

    Raises:
        ValueError: the fault, as a sentence that continues "it ...".
    """
    if len(data) > max_bytes:
        raise ValueError(f"has {len(data):,} bytes, more than the {max_bytes:,} allowed")
    try:
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_constant=_infinity if infinite else _no_constant,
            parse_float=_finite,
        )
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"is not valid JSON: {error}") from None
    except RecursionError:
        raise ValueError(f"nests deeper than {MAX_DEPTH} levels") from None
    if nested:
        _check_depth(value)
    if b"\\u" in data:
        _check_surrogates(value)
    return value


def dumps(value: Any) -> bytes:
    """UTF-8 JSON, indented by 2, keys in their order, ending in a newline; NaN is refused."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode("utf-8")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        raise ValueError(f"has the key {counts.most_common(1)[0][0][:80]!r} twice")
    return result


def _no_constant(name: str) -> float:
    raise ValueError(f"contains {name}, which is not a JSON number")


def _infinity(name: str) -> object:
    return _no_constant(name) if name == "NaN" else {"__float__": name}


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"contains {text[:40]}, which is too large for a float")
    return value


def _check_depth(value: Any) -> None:
    level, depth = [value], 0
    while level := [node for node in level if isinstance(node, dict | list)]:
        depth += 1
        if depth >= MAX_DEPTH:
            raise ValueError(f"nests deeper than {MAX_DEPTH} levels")
        level = [c for node in level for c in (node.values() if type(node) is dict else node)]


def _check_surrogates(value: Any) -> None:
    """Refuse unpaired surrogates: JSON allows their escapes, but UTF-8 cannot encode them."""
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("contains half of a surrogate pair") from None
