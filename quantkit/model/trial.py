"""A block with random weights, and what its modules receive and return when it runs."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from quantkit.model.attention import AttentionCall, Seen, attention_through
from quantkit.model.experts import experts_in, keep_one
from quantkit.model.skeleton import is_linear

Calls = list[tuple[str, torch.Tensor]]
"""Tensors by module, in call order."""


def random_copy(meta_block: nn.Module, device: torch.device) -> nn.Module:
    """The block in fp32 with random weights of a size that keeps activations near one."""
    block = copy.deepcopy(meta_block)
    for _, stack in experts_in(block):
        keep_one(stack)
    block = block.float().to_empty(device=device)
    original = dict(meta_block.named_buffers())
    for name, buffer in block.named_buffers():
        buffer.copy_(torch.ones(()) if original[name].is_meta else original[name])
    generator = torch.Generator().manual_seed(1)
    for parameter in block.parameters():
        values = torch.randn(parameter.shape, generator=generator).to(device)
        if parameter.ndim == 1:
            parameter.data.copy_(1 + 0.1 * values)
        else:
            parameter.data.copy_(values / parameter.shape[-1] ** 0.5)
    return block


def record(
    block: nn.Module, run: Callable[[], torch.Tensor]
) -> tuple[Calls, Calls, list[str], list[Seen]]:
    """Inputs of the linears and outputs of all modules, in call order, as fp32 (.., features).

    Linears that return more than a tensor, as some routers do, are named apart; calls of attention
    come last.
    The tensors are kept alive: `_groups` compares them by `id`, which Python reuses.
    """
    inputs: Calls = []
    outputs: Calls = []
    odd: list[str] = []
    seen: list[Seen] = []
    handles = []

    def see(call: AttentionCall) -> Any:
        shapes = tuple(call.key.shape), tuple(call.value.shape)
        seen.append(Seen(call.module, *shapes, len(inputs)))
        return call.run()

    def call(name: str, given: tuple[Any, ...], out: Any) -> None:
        if isinstance(out, torch.Tensor):
            inputs.append((name, given[0]))
        else:
            odd.append(name)

    for name, module in block.named_modules():
        if is_linear(module):
            handles.append(
                module.register_forward_hook(lambda _, args, out, name=name: call(name, args, out))
            )
        if name:
            handles.append(
                module.register_forward_hook(
                    lambda _, __, out, name=name: (
                        outputs.append((name, out)) if isinstance(out, torch.Tensor) else None
                    )
                )
            )
    try:
        with attention_through(see):
            run()
    finally:
        for handle in handles:
            handle.remove()
    return inputs, outputs, odd, seen
