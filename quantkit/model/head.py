"""What follows the blocks: rows of hidden states to logits, all at once or in tiles of columns."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

HEAD_ROWS = 8192
"""Rows of the output head's weight that are converted to fp32 at once."""
PROBE = 1e4
"""Logits up to this size must leave the model as they leave its head."""

Leave = Callable[[torch.Tensor], torch.Tensor]
"""The last block's output (sequences, length, width) -> logits (sequences, length, vocabulary)."""
Product = Callable[[Any, torch.Tensor], torch.Tensor]
"""Head (a linear) and its input (.., width) -> logits (.., vocabulary)."""


class Head:
    """Rows of the last block's output (rows, width) in `dtype` -> fp32 logits (rows, vocabulary).

    The product with the head is in fp32 whatever the dtype: logits rounded to bf16 move a KL by
    2e-5 nats.
    """

    def __init__(self, module: nn.Module, leave: Leave, dtype: torch.dtype) -> None:
        """`module` is the head itself, which `leave` calls; `dtype` that of the computation."""
        self._module = module
        self._through = leave
        self._narrow = dtype is not torch.float32
        self._is_product: bool | None = None

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """All logits (rows, vocabulary) of some rows (rows, width)."""
        wide = self._narrow and isinstance(self._module, nn.Linear)
        return self._leave(rows, _wide_product if wide else None)

    def is_product(self, rows: torch.Tensor) -> bool:
        """Whether the logits are what the head's matrix product gives, so that `tiles` works.

        Not where a model caps, scales or masks them. `rows` (at least 1, width) are any.
        """
        if self._is_product is None:
            self._is_product = self._leaves_as_is(rows[:1])
        return self._is_product

    def _leaves_as_is(self, row: torch.Tensor) -> bool:
        """Whether known logits of one `row` come out of the model unchanged."""
        if (
            not isinstance(self._module, nn.Linear)
            or type(self._module).forward != nn.Linear.forward
        ):
            return False
        count = self._module.out_features
        known = torch.linspace(-PROBE, PROBE, count, device=row.device)
        return torch.equal(self._leave(row, lambda *_: known[None, None])[0], known)

    def tiles(self, rows: torch.Tensor, vocabulary: int, width: int) -> Iterator[torch.Tensor]:
        """Logits of the first `vocabulary` columns, fp32 (rows, width), the last one narrower.

        Only where `is_product`. All tiles share one memory: each is overwritten by the next, and
        the caller may overwrite it, too.
        """
        found: list[torch.Tensor] = []

        def capture(head: nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
            found.extend([inputs.flatten(0, -2).float(), head.weight, *_bias(head)])
            return inputs.new_zeros((), dtype=torch.float32).expand(
                *inputs.shape[:-1], len(head.weight)
            )

        self._leave(rows, capture)
        inputs, weight, *bias = found
        room = inputs.new_empty(len(inputs) * width)
        wide = None if weight.dtype is torch.float32 else inputs.new_empty(width, inputs.shape[1])
        for start in range(0, vocabulary, width):
            part = weight[start : min(start + width, vocabulary)]
            if wide is not None:
                part = wide[: len(part)].copy_(part)
            logits = room[: len(inputs) * len(part)].view(len(inputs), len(part))
            torch.matmul(inputs, part.T, out=logits)
            for vector in bias:
                logits += vector[start : start + len(part)].float()
            yield logits

    def _leave(self, rows: torch.Tensor, product: Product | None) -> torch.Tensor:
        with torch.no_grad(), _computing(self._module, product):
            return self._through(rows[:, None]).squeeze(1).float()


def _bias(head: nn.Linear) -> list[torch.Tensor]:
    bias: torch.Tensor | None = head.bias
    return [] if bias is None else [bias]


@contextmanager
def _computing(head: nn.Module, product: Product | None) -> Iterator[None]:
    """Let `head` compute `product` of itself and its input, if one is given."""
    if product is None:
        yield
        return
    head.forward = functools.partial(product, head)
    try:
        yield
    finally:
        del head.forward


def _wide_product(head: nn.Linear, rows: torch.Tensor) -> torch.Tensor:
    """`head(rows)` as fp32 (.., vocabulary) for rows (.., width), weights converted in slices."""
    wide = rows.float()
    parts = [wide @ part.float().T for part in torch.split(head.weight, HEAD_ROWS)]
    logits = torch.cat(parts, dim=-1)
    return functools.reduce(lambda z, bias: z + bias.float(), _bias(head), logits)
