"""Modules that stand at several places of a model with one set of weights, as Zamba's attention."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def repeats_of(model: "PreTrainedModel") -> Mapping[str, str]:
    """Paths of the modules whose tensors are those of another of the same class -> its path.

    An output head that is tied to the embedding is none of them.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    found: dict[str, str] = {}
    for target, source in (getattr(model, "all_tied_weights_keys", None) or {}).items():
        here, there = target.rpartition(".")[0], source.rpartition(".")[0]
        module, other = modules.get(here), modules.get(there)
        if here == there or module is None or other is None or type(module) is not type(other):
            continue
        experts = (name for name, _ in module.named_modules() if name[:1].isdecimal())  # of a split
        found[here] = there
        found.update((f"{here}.{name}", f"{there}.{name}") for name in experts)
    return found
