"""Run a model in parts, with weights only for the modules that run."""

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import nn

from quantkit.core.errors import QuantkitError, RefusedError
from quantkit.model.batches import Batches, Room
from quantkit.model.calls import BlockInputs, Slot, beside, stacked
from quantkit.model.skeleton import Skeleton, persistent_buffers, said

LoadModule = Callable[[str, nn.Module], None]
"""Gives module `name` real parameters in place of its meta ones (its own, not its children's)."""

Keep = Callable[[torch.Tensor], torch.Tensor]
"""Takes hidden states to where they wait: the host's memory, or where they are."""


class Stop(Exception):  # noqa: N818 - control flow, not an error
    """Ends a forward early."""


class _Absent(Exception):  # noqa: N818 - control flow, not an error
    """A weight was read before its module was called."""


class _Lost(Exception):  # noqa: N818 - control flow, not an error
    """A block's input is not the output of the block before it."""


StandIn = Callable[[int, torch.Tensor, BlockInputs], torch.Tensor]
"""Replaces the forward of block `index`: hidden states and other inputs -> hidden states."""

_CALLS: WeakKeyDictionary[nn.Module, tuple[str, "Returns"]] = WeakKeyDictionary()
"""The part of a model that is called, and what its code takes from a block's return value."""
_STREAMS: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
"""The `streams` of a model's blocks, once it was entered."""
Returns = tuple[int, bool]
"""How many items a block returns, 0 for a bare tensor; whether those after the first are slots."""
RETURNS = ((0, False), (1, False), (2, True), (2, False), (3, True), (3, False))
_AT_ONCE: WeakSet[nn.Module] = WeakSet()
"""Models that read weights of modules outside the blocks before these are called."""


def embed(
    skeleton: Skeleton,
    load: LoadModule,
    batches: Iterable[torch.Tensor],
    keep: Keep = lambda hidden: hidden,
    room: Room = list,
) -> tuple[Batches, list[list[BlockInputs]]]:
    """Per batch of token ids: the first block's hidden states, and the calls of all blocks.

    A batch is int64 (sequences, length); hidden states are (sequences, length, width) in the dtype
    that `load` gives, as `keep` leaves them, in a sequence of `room`. What is equal in two calls
    (rotary tables, masks, positions) is kept once.

    Raises:
        RefusedError: the model changes hidden states between two blocks.
    """
    calls: dict[int, BlockInputs] = {}
    entered = room()
    by_batch: list[list[BlockInputs]] = []
    count = len(skeleton.blocks)

    def stand_in(index: int, hidden: torch.Tensor, given: BlockInputs) -> torch.Tensor:
        before = hidden.ndim == 4 and hidden.shape[:2] != ids.shape == hidden.shape[1:3]
        _STREAMS[skeleton.model] = streams = len(hidden) if before else 0
        calls[index] = replace(given, streams=streams)
        if index + 1 == count:
            entered.append(keep(beside(hidden, streams)))
            raise Stop
        return hidden

    batches = list(batches)
    try:
        with loaded_on_call(skeleton, load):
            for ids in batches:
                forward_with(skeleton, ids, stand_in)
                found = list(calls.values())
                by_batch.append(_sharing(found, by_batch[0]) if by_batch else found)
    except _Absent:
        return embed(skeleton, load, batches, keep, room)
    return entered, by_batch


def _sharing(calls: list[BlockInputs], known: list[BlockInputs]) -> list[BlockInputs]:
    """Calls in which every argument that equals that of a known call is the same object."""
    seen: dict[tuple[int, int], bool] = {}

    def shared(new: Any, old: Any) -> Any:
        key = (id(new), id(old))
        if key not in seen:
            seen[key] = _equal(new, old)
        return old if seen[key] else new

    return [
        replace(
            call,
            arguments=tuple(map(shared, call.arguments, other.arguments)),
            keywords={
                k: shared(value, other.keywords.get(k)) for k, value in call.keywords.items()
            },
        )
        for call, other in zip(calls, known, strict=True)
    ]


def _equal(new: Any, old: Any) -> bool:
    """Whether two arguments of a block are equal, as far as tensors in tuples go."""
    if isinstance(new, torch.Tensor) and isinstance(old, torch.Tensor):
        return new.shape == old.shape and new.dtype == old.dtype and torch.equal(new, old)
    if isinstance(new, tuple | list) and isinstance(old, tuple | list):
        return len(new) == len(old) and all(map(_equal, new, old))
    return new is old


def leave(skeleton: Skeleton, load: LoadModule, hidden: torch.Tensor) -> torch.Tensor:
    """The logits (sequences, length, vocabulary) of the last block's output `hidden`.

    `hidden` is (sequences, length, width); logits have the dtype of the head's product.
    """

    def check(_: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        given = next(iter((*arguments, *keywords.values())))
        if given.shape[:2] != hidden.shape[:2]:
            raise _Lost

    head = skeleton.model.get_submodule(skeleton.head)
    handle = head.register_forward_pre_hook(check, with_kwargs=True)
    try:
        with _no_embedding(skeleton, hidden), loaded_on_call(skeleton, load):
            ids = torch.zeros(hidden.shape[:2], dtype=torch.int64, device=hidden.device)
            given = stacked(hidden, _STREAMS.get(skeleton.model, 0))
            logits: torch.Tensor = forward_with(skeleton, ids, lambda *_: given).logits
    finally:
        handle.remove()
    return logits


def once(load: LoadModule) -> LoadModule:
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
def _no_embedding(skeleton: Skeleton, hidden: torch.Tensor) -> Iterator[None]:
    """Embed every token as zeros, which take no memory, for what follows the blocks."""
    embedding = skeleton.model.get_input_embeddings()
    own = embedding.weight
    zeros = hidden.new_zeros(()).expand(own.shape)
    embedding.weight = nn.Parameter(zeros, requires_grad=False)
    try:
        yield
    finally:
        embedding.weight = own


def forward_with(skeleton: Skeleton, ids: torch.Tensor, stand_in: StandIn) -> Any:
    """The model's output with `stand_in` for its blocks; None where that stopped it.

    `ids` is int64 (sequences, length). Families differ in what they take from a block's return
    value: a tensor, or the items of a tuple. The forward is repeated until it works; a bare tensor
    of which item 0 is taken, its first sequence, is noticed by its shape or identity.
    """
    known = _CALLS.get(skeleton.model)
    fault: Exception = _Lost()
    for path, returns in product(_parts(skeleton), RETURNS) if known is None else (known,):
        try:
            replaced = _blocks_replaced(skeleton, stand_in, returns)
            with torch.no_grad(), _placed(ids.device), replaced:
                found = skeleton.model.get_submodule(path)(input_ids=ids, use_cache=False)
        except Stop:
            found = None
        except MemoryError:
            raise
        except Exception as error:  # modeling code can raise anything
            if skeleton.model not in _AT_ONCE and "meta" in f"{error}":
                _AT_ONCE.add(skeleton.model)
                raise _Absent from error
            fault = fault if path or returns[0] else error
            continue
        if len(skeleton.blocks) > 1 or found is not None:  # one block returns nothing when entered
            _CALLS[skeleton.model] = path, returns
        return found
    if isinstance(fault, QuantkitError | torch.OutOfMemoryError):
        raise fault
    if not isinstance(fault, _Lost):
        raise RefusedError(
            f"`{type(skeleton.model).__name__}` cannot be run block by block on token ids alone",
            why=f"{type(fault).__name__}: {said(fault)}",
            hint="use a decoder model that needs no other inputs",
        ) from fault
    raise more_than_hidden(skeleton)


def _parts(skeleton: Skeleton) -> Iterator[str]:
    """Paths of what may be called with token ids: the model, or the language model inside it.

    Some models need images in every call.
    """
    from transformers import PreTrainedModel

    yield ""
    for path, module in skeleton.model.named_modules():
        speaks = isinstance(module, PreTrainedModel) and module.can_generate()
        inside = (skeleton.prefix, skeleton.head)
        if path and speaks and all(name.startswith(f"{path}.") for name in inside):
            yield path


def more_than_hidden(skeleton: Skeleton) -> RefusedError:
    """The refusal of a model whose blocks need more than the output of the one before."""
    return RefusedError(
        f"`{type(skeleton.model).__name__}` does more than pass hidden states from block to block",
        why="quantkit runs the blocks one by one, each on the output of the one before it",
        hint="use a model whose decoder is a plain chain of blocks",
    )


@contextmanager
def _placed(device: torch.device) -> Iterator[None]:
    """Let models say that they are on `device`: they go by parameters, which have no memory."""
    from transformers import PreTrainedModel

    own = PreTrainedModel.device
    PreTrainedModel.device = property(lambda _: device)
    try:
        yield
    finally:
        PreTrainedModel.device = own


@contextmanager
def _blocks_replaced(skeleton: Skeleton, stand_in: StandIn, returns: Returns) -> Iterator[None]:
    """Replace the forward of every block; each must receive the output of the one before it."""
    items, with_slots = returns
    last: list[torch.Tensor] = []
    turns = [tuple(Slot(turn) for _ in range(items - 1)) for turn in range(2)]

    def answer(index: int, *arguments: Any, **keywords: Any) -> Any:
        hidden = arguments[0] if arguments else keywords.pop(_hidden_keyword(keywords))
        if index != len(last) or (last and hidden is not last[-1]):
            raise _Lost
        returned = turns[index % 2]
        for slot in (each for each in (*arguments, *keywords.values()) if isinstance(each, Slot)):
            if slot in returned:  # of the block before the last one
                raise _Lost
            slot.used = True
        returned = returned if with_slots else ()
        last.append(stand_in(index, hidden, BlockInputs(arguments[1:], keywords, returns=returned)))
        others = returned or [None] * (items - 1)
        return (last[-1], *others) if items else last[-1]

    blocks = skeleton.blocks
    for index, block in enumerate(blocks):
        block.forward = functools.partial(answer, index)
    try:
        yield
    finally:
        for block in blocks:
            del block.forward


def _hidden_keyword(keywords: dict[str, Any]) -> str:
    """The keyword that hidden states are given by: its usual name, or that of the first tensor."""
    if "hidden_states" in keywords:
        return "hidden_states"
    return next(key for key, value in keywords.items() if isinstance(value, torch.Tensor))


@contextmanager
def loaded_on_call(skeleton: Skeleton, load: LoadModule) -> Iterator[None]:
    """Load each module outside the blocks when it is first called; release all at the end."""
    handles = []
    loaded: list[nn.Module] = []
    embedding = skeleton.model.get_input_embeddings()

    def on_call(name: str, module: nn.Module, given: tuple[Any, ...] = ()) -> None:
        if any(isinstance(each, torch.Tensor) and each.is_meta for each in given):
            raise _Lost("meta")  # made from a weight that was not loaded
        if module not in loaded:
            load(name, module)
            loaded.append(module)

    for name, module in skeleton.model.named_modules():
        own = (*module.parameters(recurse=False), *module.buffers(recurse=False))
        if name.startswith(skeleton.prefix + ".") or not any(tensor.is_meta for tensor in own):
            continue
        handles.append(module.register_forward_pre_hook(functools.partial(on_call, name)))
        if module is embedding or skeleton.model in _AT_ONCE:  # asked for before it is called
            on_call(name, module)
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
