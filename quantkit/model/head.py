"""What follows the last block: the final norm and the output head."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import nn

from quantkit.model.skeleton import Skeleton, persistent_buffers
from quantkit.model.walk import Load, leave

HEAD_ROWS = 8192
"""Rows of the output head that are widened to fp32 at once."""


def head_of(
    skeleton: Skeleton, load: Load, dtype: torch.dtype
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Rows of the last block's output (rows, width) in `dtype` -> fp32 logits (rows, vocabulary).

    The weights are read when they are first needed and kept as long as the function is; between two
    calls the skeleton holds none, so that models that share it may take turns.

    The product with the head is in fp32 whatever the dtype: logits rounded to bf16 move a KL by
    2e-5 nats.
    """
    head = skeleton.model.get_submodule(skeleton.head)
    load = _once(load)

    def logits(rows: torch.Tensor) -> torch.Tensor:
        with _in_fp32(head) if dtype is not torch.float32 else nullcontext():
            return leave(skeleton, load, rows[:, None]).squeeze(1).float()

    return logits


def _once(load: Load) -> Load:
    """`load` that reads a module once, and gives it the same tensors whenever it is asked again."""
    known: dict[str, dict[str, torch.Tensor]] = {}

    def again(name: str, module: nn.Module) -> None:
        if name not in known:
            load(name, module)
            parameters = module.named_parameters(recurse=False)
            known[name] = dict([*parameters, *persistent_buffers(module)])
        for key, tensor in known[name].items():
            setattr(module, key, tensor)

    return again


@contextmanager
def _in_fp32(head: nn.Module) -> Iterator[None]:
    """Let `head` compute in fp32, if it is a plain linear."""
    if not isinstance(head, nn.Linear):
        yield
        return
    head.forward = functools.partial(_wide_product, head)  # type: ignore[method-assign]  # for one call
    try:
        yield
    finally:
        del head.forward


def _wide_product(head: nn.Linear, rows: torch.Tensor) -> torch.Tensor:
    """`head(rows)` in fp32, with a slice of the head's weights widened at a time."""
    wide = rows.float()
    parts = [wide @ part.float().T for part in torch.split(head.weight, HEAD_ROWS)]
    logits = torch.cat(parts, dim=-1)
    bias: torch.Tensor | None = head.bias
    return logits if bias is None else logits + bias.float()
