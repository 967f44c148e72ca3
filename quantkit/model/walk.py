"""Running a model in parts, with only the modules that run having weights."""

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from quantkit.model.skeleton import Skeleton

Load = Callable[[str, nn.Module], None]
"""Gives module `name` real parameters in place of its meta ones (its own, not its children's)."""


@dataclass(frozen=True)
class BlockInputs:
    """How the model calls one block: every argument but the hidden states, which come first."""

    arguments: tuple[Any, ...]
    keywords: dict[str, Any]

    def run(self, block: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
        """The block's output hidden states (sequences, length, width) for those inputs."""
        out = block(hidden, *self.arguments, **self.keywords)
        return out if isinstance(out, torch.Tensor) else out[0]


class _Stop(Exception):  # noqa: N818 - control flow, not an error
    """Ends a forward early."""


def embed(
    skeleton: Skeleton, load: Load, batches: Iterable[dict[str, torch.Tensor]]
) -> tuple[list[torch.Tensor], list[list[BlockInputs]]]:
    """Per batch of model inputs: the first block's hidden states, and the calls of all blocks.

    The calls depend on the shape of a batch alone (rotary tables, masks, positions), so batches of
    one shape share them.
    """
    calls: list[BlockInputs] = []
    entered: list[torch.Tensor] = []
    by_shape: dict[torch.Size, list[BlockInputs]] = {}
    count = len(skeleton.blocks)

    def stand_in(hidden: torch.Tensor, *arguments: Any, **keywords: Any) -> torch.Tensor:
        calls.append(BlockInputs(arguments, keywords))
        if len(calls) == count:
            entered.append(hidden)
            raise _Stop
        return hidden

    with _blocks_replaced(skeleton, stand_in), _loaded_on_call(skeleton, load):
        for inputs in batches:
            _forward(skeleton, inputs)
            by_shape.setdefault(entered[-1].shape, calls.copy())
            calls.clear()
    return entered, [by_shape[hidden.shape] for hidden in entered]


def leave(
    skeleton: Skeleton, load: Load, hidden: torch.Tensor, *, head: nn.Module | None = None
) -> torch.Tensor:
    """What follows the last block: the head's input, or the logits if a loaded `head` is given."""
    taken: list[torch.Tensor] = []

    def stand_in(*_: Any, **__: Any) -> torch.Tensor:
        return hidden

    def stop(_: nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
        taken.append(arguments[0])
        if head is None:
            raise _Stop

    handle = skeleton.model.get_submodule(skeleton.head).register_forward_pre_hook(stop)
    try:
        with _blocks_replaced(skeleton, stand_in), _loaded_on_call(skeleton, load):
            out = _forward(skeleton, {"inputs_embeds": torch.zeros_like(hidden)})
    finally:
        handle.remove()
    return taken[0] if head is None else out.logits


def _forward(skeleton: Skeleton, inputs: dict[str, torch.Tensor]) -> Any:
    with torch.no_grad():
        try:
            return skeleton.model(**inputs, use_cache=False)
        except _Stop:
            return None


@contextmanager
def _blocks_replaced(skeleton: Skeleton, stand_in: Callable[..., torch.Tensor]) -> Iterator[None]:
    """Let `stand_in` answer in place of every block."""

    def answer(*arguments: Any, **keywords: Any) -> torch.Tensor:
        if arguments:
            return stand_in(*arguments, **keywords)
        return stand_in(keywords.pop("hidden_states"), **keywords)

    blocks = skeleton.blocks
    for block in blocks:
        block.forward = answer
    try:
        yield
    finally:
        for block in blocks:
            del block.forward


@contextmanager
def _loaded_on_call(skeleton: Skeleton, load: Load) -> Iterator[None]:
    """Load each module outside the blocks when it is first called; let go of all at the end."""
    handles = []
    loaded: list[nn.Module] = []

    def on_call(name: str, module: nn.Module) -> None:
        if module not in loaded:
            load(name, module)
            loaded.append(module)

    for name, module in skeleton.model.named_modules():
        if name.startswith(skeleton.prefix + ".") or not any(
            p.is_meta for p in module.parameters(recurse=False)
        ):
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
    """Put the parameters of `module` and its children back on the meta device."""
    for part in module.modules():
        for key, parameter in part.named_parameters(recurse=False):
            setattr(part, key, nn.Parameter(parameter.data.to("meta"), requires_grad=False))
