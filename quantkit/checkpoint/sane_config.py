"""Sizes in a config.json that no model has: building them would take all memory, or hours."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from quantkit.checkpoint.filenames import CONFIG
from quantkit.checkpoint.stored import TensorInfo
from quantkit.core.errors import InputError

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
EXPERTS = re.compile(r"experts(_per_tok(en)?)?$")
MOST = {
    re.compile(r"(^|_)(layers?|heads?|experts|groups|labels)$|^depth$"): 2**20,
    re.compile(r"(hidden|intermediate|vocab|embed)_size$|_(dim|rank)$|^d_|^dim$|^n_embd$"): 2**24,
}
"""Fields that count or measure parts of a model, by their names, and the most that any has."""


def require_sane(config: Mapping[str, Any], names: Mapping[str, TensorInfo]) -> None:
    """Check the sizes of a config, its parts included, against the tensors of its checkpoint.

    Raises:
        InputError: there are more blocks than tensors, more experts than are stored, or a size
            beyond any model's.
    """
    for part in (config, config.get("text_config")):
        for key in LAYERS:
            blocks = part.get(key) if isinstance(part, Mapping) else None
            if blocks is not None and (type(blocks) is not int or not 0 < blocks <= len(names)):
                raise _fault(key, blocks, f"between 1 and the number of tensors, {len(names)}")
    stacks = (info.shape[0] for info in names.values() if len(info.shape) > 2)
    experts = max(len(names), *stacks, 1)
    for key, value in _integers(config):
        if EXPERTS.search(key) and value > experts:
            raise _fault(key, value, f"at most {experts}, as no more are stored")
        for pattern, most in MOST.items():
            if value > most and pattern.search(key):
                raise _fault(key, value, f"at most {most:,}")


def _fault(key: str, value: object, legal: str) -> InputError:
    return InputError(
        f"`{CONFIG}` sets `{key[:80]}` to {str(value)[:40]}",
        why=f"it must be {legal}",
        hint="use the config.json that belongs to these weights",
    )


def _integers(value: Any) -> Iterator[tuple[str, int]]:
    """Every whole number with the name of its field."""
    if isinstance(value, list):
        for item in value:
            yield from _integers(item)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if isinstance(item, Mapping | list):
                yield from _integers(item)
            elif type(item) is int:
                yield str(key), item
