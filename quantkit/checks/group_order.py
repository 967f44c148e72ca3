"""`g_idx` is no order of whole groups, or is not in order where the config says so."""

from collections.abc import Iterator

import torch

from quantkit.core.check import Check, Fault
from quantkit.model.stored_weights import StoredWeight


def find(weight: StoredWeight) -> Iterator[Fault]:
    """The group of each input, where it is impossible or contradicts `desc_act: false`."""
    g_idx, scheme, facts = weight.tensors.get("g_idx"), weight.scheme, weight.facts
    if g_idx is None or scheme is None or facts is None or g_idx.dtype is not torch.int32:
        return
    name, groups = weight.names["g_idx"], scheme.groups(facts.in_features)
    if int(g_idx.min()) < 0 or int(g_idx.max()) >= groups:
        yield Fault(name, f"`{name}` names groups outside 0 .. {groups - 1}")
        return
    sizes = torch.bincount(g_idx.long(), minlength=groups)
    if int(sizes.max()) > (scheme.group_size or facts.in_features):
        yield Fault(name, f"`{name}` has groups of up to {int(sizes.max())} inputs")
        return
    if not weight.ordered and bool((g_idx.diff() < 0).any()):
        yield Fault(
            name,
            f"`{name}` is not in order, and config.json says `desc_act: false`: vLLM ignores it "
            "and computes with wrong weights",
        )


CHECK = Check(
    "weights",
    "the groups of a GPTQ weight are impossible, or not in the order that the config states",
    "set `desc_act`, or quantize again without it",
    find,
)
