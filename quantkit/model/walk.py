"""Run a model in parts, with weights only for the modules that run."""

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import torch
from torch import nn

from quantkit.core.errors import RefusedError
from quantkit.model.skeleton import Skeleton, persistent_buffers

HEAD_ROWS = 8192
"""Rows of the output head's weight that are converted to fp32 at once."""

LoadModule = Callable[[str, nn.Module], None]
"""Gives module `name` real parameters in place of its meta ones (its own, not its children's)."""


@dataclass(frozen=True)
class BlockInputs:
    """How the model calls one block: every argument but the hidden states, which come first."""

    arguments: tuple[Any, ...]
    keywords: dict[str, Any]

    def run(self, block: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
        """The block's output for `hidden`, both (sequences, length, width) of the block's dtype."""
        out = block(hidden, *self.arguments, **self.keywords)
        return out if isinstance(out, torch.Tensor) else out[0]


class _Stop(Exception):  # noqa: N818 - control flow, not an error
    """Ends a forward early."""


class _Lost(Exception):  # noqa: N818 - control flow, not an error
    """A block's input is not the output of the block before it."""


StandIn = Callable[[int, torch.Tensor, BlockInputs], torch.Tensor]
"""Replaces the forward of block `index`: hidden states and other inputs -> hidden states."""

_TUPLES: WeakSet[nn.Module] = WeakSet()
"""Models whose code takes the first item of a block's return value."""


def embed(
    skeleton: Skeleton, load: LoadModule, batches: Iterable[dict[str, torch.Tensor]]
) -> tuple[list[torch.Tensor], list[list[BlockInputs]]]:
    """Per batch of model inputs: the first block's hidden states, and the calls of all blocks.

    A batch is `input_ids`, int64 (sequences, length), or `inputs_embeds`, (sequences, length,
    width); hidden states are (sequences, length, width) in the dtype that `load` gives.

    The calls depend on the shape of a batch alone (rotary tables, masks, positions), so batches of
    one shape share them.

    Raises:
        RefusedError: the model changes hidden states between two blocks.
    """
    calls: dict[int, BlockInputs] = {}
    entered: list[torch.Tensor] = []
    by_shape: dict[torch.Size, list[BlockInputs]] = {}
    count = len(skeleton.blocks)

    def stand_in(index: int, hidden: torch.Tensor, given: BlockInputs) -> torch.Tensor:
        calls[index] = given
        if index + 1 == count:
            entered.append(hidden)
            raise _Stop
        return hidden

    with _loaded_on_call(skeleton, load):
        for inputs in batches:
            _forward(skeleton, inputs, stand_in)
            by_shape.setdefault(entered[-1].shape, list(calls.values()))
    return entered, [by_shape[hidden.shape] for hidden in entered]


def leave(skeleton: Skeleton, load: LoadModule, hidden: torch.Tensor) -> torch.Tensor:
    """The logits (sequences, length, vocabulary) of the last block's output `hidden`.

    `hidden` is (sequences, length, width); logits have the dtype of the head's product.
    """

    def check(_: nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
        if arguments[0].shape[:-1] != hidden.shape[:-1]:
            raise _Lost

    handle = skeleton.model.get_submodule(skeleton.head).register_forward_pre_hook(check)
    try:
        with _loaded_on_call(skeleton, load):
            inputs = {"inputs_embeds": torch.zeros_like(hidden)}
            logits: torch.Tensor = _forward(skeleton, inputs, lambda *_: hidden).logits
    finally:
        handle.remove()
    return logits


def head_of(
    skeleton: Skeleton, load: LoadModule, dtype: torch.dtype
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Rows of the last block's output (rows, width) in `dtype` -> fp32 logits (rows, vocabulary).

    The weights are read at the first call and kept as long as the function is; between two calls
    the skeleton has none, so that models that share it may take turns.

    The product with the head is in fp32 whatever the dtype: logits rounded to bf16 move a KL by
    2e-5 nats.
    """
    head = skeleton.model.get_submodule(skeleton.head)
    load = _once(load)

    def logits(rows: torch.Tensor) -> torch.Tensor:
        with _in_fp32(head) if dtype is not torch.float32 else nullcontext():
            return leave(skeleton, load, rows[:, None]).squeeze(1).float()

    return logits


def _once(load: LoadModule) -> LoadModule:
    """`load` that reads each module once and sets the same tensors at later calls."""
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
    """`head(rows)` as fp32 (.., vocabulary) for rows (.., width), weights converted in slices."""
    wide = rows.float()
    parts = [wide @ part.float().T for part in torch.split(head.weight, HEAD_ROWS)]
    logits = torch.cat(parts, dim=-1)
    bias: torch.Tensor | None = head.bias
    return logits if bias is None else logits + bias.float()


def _forward(skeleton: Skeleton, inputs: dict[str, torch.Tensor], stand_in: StandIn) -> Any:
    """The model's output with `stand_in` for its blocks; None where that stopped it.

    `inputs` are those of `embed`. Older families take item 0 of a block's return value, which of a
    bare tensor is its first sequence: where that is noticed, the forward is repeated with tuples.
    """
    for _ in range(2):
        try:
            with torch.no_grad(), _blocks_replaced(skeleton, stand_in):
                return skeleton.model(**inputs, use_cache=False)
        except _Stop:
            return None
        except _Lost:
            if skeleton.model in _TUPLES:
                break
        except Exception:  # with a single block, only code after it can fail
            if len(skeleton.blocks) > 1 or skeleton.model in _TUPLES:
                raise
        _TUPLES.add(skeleton.model)
    raise RefusedError(
        f"`{type(skeleton.model).__name__}` does more than pass hidden states from block to block",
        why="quantkit runs the blocks one by one, each on the output of the one before it",
        hint="use a model whose decoder is a plain chain of blocks",
    )


@contextmanager
def _blocks_replaced(skeleton: Skeleton, stand_in: StandIn) -> Iterator[None]:
    """Replace the forward of every block; each must receive the output of the one before it."""
    last: list[torch.Tensor] = []

    def answer(index: int, *arguments: Any, **keywords: Any) -> Any:
        hidden = arguments[0] if arguments else keywords.pop("hidden_states")
        if index != len(last) or (last and hidden is not last[-1]):
            raise _Lost
        last.append(stand_in(index, hidden, BlockInputs(arguments[1:], keywords)))
        return (last[-1],) if skeleton.model in _TUPLES else last[-1]

    blocks = skeleton.blocks
    for index, block in enumerate(blocks):
        block.forward = functools.partial(answer, index)
    try:
        yield
    finally:
        for block in blocks:
            del block.forward


@contextmanager
def _loaded_on_call(skeleton: Skeleton, load: LoadModule) -> Iterator[None]:
    """Load each module outside the blocks when it is first called; release all at the end."""
    handles = []
    loaded: list[nn.Module] = []

    def on_call(name: str, module: nn.Module) -> None:
        if module not in loaded:
            load(name, module)
            loaded.append(module)

    for name, module in skeleton.model.named_modules():
        own = (*module.parameters(recurse=False), *module.buffers(recurse=False))
        if name.startswith(skeleton.prefix + ".") or not any(tensor.is_meta for tensor in own):
            continue
        hook = functools.partial(lambda name, module, _: on_call(name, module), name)
        handles.append(module.register_forward_pre_hook(hook))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for module in loaded:
            release(module)


def release(module: nn.Module) -> None:
    """Move parameters and persistent buffers of `module` and its children to the meta device."""
    for part in module.modules():
        for key, buffer in persistent_buffers(part):
            setattr(part, key, buffer.to("meta"))
        for key, parameter in part.named_parameters(recurse=False):
            setattr(part, key, nn.Parameter(parameter.data.to("meta"), requires_grad=False))
