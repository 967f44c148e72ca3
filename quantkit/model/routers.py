"""Linears that weigh experts: an error in them sends tokens elsewhere, and they are small."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from quantkit.model.experts import experts_in
from quantkit.model.skeleton import linear_facts

NOISE = 4.0
"""Standard deviation of what is added to a linear's outputs: enough to change a choice."""

Run = Callable[[], torch.Tensor]
Stacks = list[tuple[str, nn.Module]]
Given = list[Any]
"""The arguments of one call of experts: the tokens first."""


def routers_of(block: nn.Module, run: Run, called: Iterable[str]) -> tuple[str, ...]:
    """Those of the linears `called` in `run` of a block that weigh experts, or a shared expert.

    What such a linear says reaches experts beside their inputs, never through them. A shared expert
    is weighed by a linear of one output.
    """
    stacks = experts_in(block)
    paths = [path for path, _ in stacks]
    around = [above for path in paths if (above := path.rpartition(".")[0])]
    before = _given(stacks, run)
    found = []
    for name in dict.fromkeys(called):
        if not stacks or _is_within(name, paths):
            continue
        linear = block.get_submodule(name)
        weighs_shared = linear_facts(name, linear).out_features == 1 and _is_within(name, around)
        if weighs_shared or _weighs(before, _given_with_noise(linear, stacks, run)):
            found.append(name)
    return tuple(found)


def _is_within(name: str, paths: Iterable[str]) -> bool:
    return any(name.startswith(f"{path}.") for path in paths)


def _given(stacks: Stacks, run: Run) -> list[Given]:
    """The arguments of all calls of experts, in order."""
    found: list[Given] = []

    def note(_: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        found.append([*arguments, *keywords.values()])

    handles = [m.register_forward_pre_hook(note, with_kwargs=True) for _, m in stacks]
    try:
        if stacks:
            run()
    finally:
        for handle in handles:
            handle.remove()
    return found


def _given_with_noise(linear: nn.Module, stacks: Stacks, run: Run) -> list[Given]:
    """What experts are given when the outputs of a linear are others."""

    def add_noise(_: nn.Module, __: Any, out: torch.Tensor) -> torch.Tensor:
        noise = torch.randn(out.shape, generator=torch.Generator().manual_seed(3))
        return out + NOISE * noise.to(out.device)

    handle = linear.register_forward_hook(add_noise)
    try:
        return _given(stacks, run)
    finally:
        handle.remove()


def _weighs(before: list[Given], after: list[Given]) -> bool:
    """Whether some experts are given the same tokens, and something else beside them."""
    return any(
        torch.equal(_in_order(old[0]), _in_order(new[0])) and not all(map(_equal, old[1:], new[1:]))
        for old, new in zip(before, after, strict=True)
    )


def _in_order(tokens: torch.Tensor) -> torch.Tensor:
    """Inputs (.., features), each feature sorted: JetMoE's router sorts the tokens by expert."""
    return tokens.flatten(0, -2).sort(0).values


def _equal(old: Any, new: Any) -> bool:
    if isinstance(old, torch.Tensor):
        return torch.equal(old, new)
    return bool(old == new)
