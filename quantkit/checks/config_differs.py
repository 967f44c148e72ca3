"""config.json describes another model than the source's."""

from collections.abc import Iterator, Mapping
from typing import Any

from quantkit.core.check import Check, Fault
from quantkit.model.beside import Beside
from quantkit.model.declared import Declared

OWN = (
    *("transformers_version", "_name_or_path", "dtype", "torch_dtype", "quantization_config"),
    *("use_cache", "architectures", "compression_config", "_attn_implementation_autoset"),
)
"""Fields that quantization and saving may change."""
NAMED = 4


def find(beside: Beside) -> Iterator[Fault]:
    """The fields that differ, as transformers reads both files."""
    mine, theirs = _fields(beside.artifact), _fields(beside.source)
    apart = sorted(key for key in mine.keys() | theirs if mine.get(key) != theirs.get(key))
    if apart:
        told = ", ".join(
            f"`{k}` is {mine.get(k)!r:.40} and {theirs.get(k)!r:.40}" for k in apart[:NAMED]
        )
        more = f" and {len(apart) - NAMED} more" if len(apart) > NAMED else ""
        yield Fault("config.json", f"config.json differs from the source's: {told}{more}")


def _fields(declared: Declared) -> dict[str, Any]:
    return dict(_flat(declared.model.config.to_dict()))


def _flat(fields: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in fields.items():
        if key in OWN:
            continue
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


CHECK = Check(
    "source",
    "config.json describes another model than the source's",
    "take the fields of the source's config.json",
    find,
    1,
)
