"""The attentions of a block, and which of them keep keys and values in a plain cache."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from quantkit.model.attention import Seen, cache_argument
from quantkit.model.skeleton import is_linear

RECURRENT = re.compile(r"delta|linear|lightning|mamba|retention|rwkv", re.IGNORECASE)
"""In names of modules that are called attention, and keep a state in place of keys and values."""


@dataclass(frozen=True)
class Attention:
    """An attention of a block: where it stands in the block.

    `after`: how many of the block's groups have their inputs before it. `fault`: why its cache
    cannot be rounded; empty if it can.
    """

    path: str
    after: int
    fault: str = ""


def attentions_of(block: nn.Module, seen: list[Seen], before: list[int]) -> tuple[Attention, ...]:
    """The attentions of a traced block: those that were seen, then those that were not.

    `before`: calls of linears before the inputs of each group are complete, ascending.
    """
    paths = {module: path for path, module in block.named_modules()}
    known = [each.module for each in seen]
    found = []
    for call in (each for each in seen if each.module in paths):
        after = sum(number < call.linears for number in before)
        fault = _fault(call, known)
        found.append(Attention(paths[call.module], after, fault))
    return (*found, *(Attention(path, 0, UNSEEN) for path in _unseen(block, known)))


UNSEEN = "its code does not call attention by transformers' registry"


def _fault(call: Seen, known: list[nn.Module]) -> str:
    if known.count(call.module) > 1:
        return "it computes attention more than once"
    if call.key != call.value:
        return "its keys and values differ in shape, as where a cache holds neither"
    if cache_argument(call.module) is None:
        return "its code takes no cache"
    return ""


def _unseen(block: nn.Module, known: list[nn.Module]) -> Iterator[str]:
    """Paths of modules with linears that are named as attentions are, and were not seen to be."""
    around = {path for path, module in block.named_modules() if module in known}
    for path, module in block.named_modules():
        name = type(module).__name__
        named = "attention" in name.lower() and not RECURRENT.search(name)
        apart = not any(_nested(path, other) or _nested(other, path) for other in around)
        if path and named and apart and any(map(is_linear, module.modules())):
            around.add(path)
            yield path


def _nested(inner: str, outer: str) -> bool:
    return inner == outer or inner.startswith(f"{outer}.")
