"""Whether a decoder is a chain: each block, and what follows the last, reads its predecessor only.

A model may keep other things: the outputs of earlier blocks, or a second value that blocks return.
Running blocks one by one would lose them without any error.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from quantkit.core.errors import RefusedError
from quantkit.model.calls import BlockInputs
from quantkit.model.skeleton import Skeleton, is_linear, persistent_buffers, tied_to
from quantkit.model.walk import Stop, forward_with, loaded_on_call, more_than_hidden

TOKENS = 12
"""Length of the sequence that is tried."""


def require_own_weights(skeleton: Skeleton, repeats: Mapping[str, str]) -> None:
    """Check that a linear of a block shares its weight with those of other blocks only, if at all.

    `repeats` as in `WeightMap`: it names those of which only the other is stored.

    Raises:
        RefusedError: it shares it otherwise.
    """
    seen: set[tuple[str, str]] = set()
    for name, module in skeleton.model.get_submodule(skeleton.prefix).named_modules():
        if not is_linear(module):
            continue
        path = f"{skeleton.prefix}.{name}"
        place = repeats.get(path, path), name.partition(".")[0]
        other = tied_to(skeleton.model, f"{path}.weight")
        known = path in repeats and place[0].startswith(f"{skeleton.prefix}.")
        if place in seen or (other and not known):
            raise RefusedError(
                f"`{path}.weight` is the same weight as `{other or place[0]}`",
                why="a linear is quantized in the first block that calls it, and this one is not "
                "shared by blocks alone",
                hint="use a model whose blocks have weights of their own",
            )
        seen.add(place)


def require_chain(skeleton: Skeleton) -> None:
    """Check that nothing depends on blocks but through the output of the last one before.

    The blocks return random numbers. Whatever these are, the
    blocks' other arguments must be the same, and the head's input must depend on the last output
    alone, not even on the embeddings.

    Raises:
        RefusedError: something depends on more.
    """
    given, entered = _seen(skeleton, seeds=(0, 0))
    others, _ = _seen(skeleton, seeds=(0, 1))
    _, left = _seen(skeleton, seeds=(1, 1))
    if _differ(given, others) or _differ(entered, left):
        raise more_than_hidden(skeleton)


def _seen(skeleton: Skeleton, seeds: tuple[int, int]) -> tuple[list[Any], list[Any]]:
    """The arguments of all blocks but their hidden states, and those of the head.

    `seeds` are those of the embeddings and of the outputs of all blocks but the last.
    """
    ids = torch.arange(TOKENS)[None]
    count, embedding = len(skeleton.blocks), skeleton.model.get_input_embeddings()
    row, outputs, last = (torch.Generator().manual_seed(seed) for seed in (*seeds, 2))
    blocks: list[Any] = []
    head: list[Any] = []
    own: list[tuple[nn.Module, str, torch.Tensor]] = []

    def stand_in(index: int, hidden: torch.Tensor, given: BlockInputs) -> torch.Tensor:
        if ids.shape not in (hidden.shape[:2], hidden.shape[1:3]):
            raise more_than_hidden(skeleton)  # it has more positions than tokens
        blocks.extend((*given.arguments, *given.keywords.values()))
        return torch.randn(hidden.shape, generator=last if index + 1 == count else outputs)

    def load(_: str, module: nn.Module) -> None:
        own.extend((module, key, tensor) for key, tensor in _stored(module))
        _load_ones(module)
        if module is embedding:
            weight = torch.randn(module.weight.shape[1:], generator=row).expand(module.weight.shape)
            module.weight = nn.Parameter(weight, requires_grad=False)

    def stop(_: nn.Module, arguments: tuple[Any, ...]) -> None:
        head.extend(arguments)
        raise Stop

    last_module = skeleton.model.get_submodule(skeleton.head) if skeleton.head else nn.Identity()
    handle = last_module.register_forward_pre_hook(stop)
    try:
        with loaded_on_call(skeleton, load):
            forward_with(skeleton, ids, stand_in)
    finally:
        handle.remove()
        for module, key, tensor in own:  # some code goes by the dtype of weights on the meta device
            setattr(module, key, tensor)
    return blocks, head


def _stored(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """The parameters and persistent buffers of a module itself."""
    return [*module.named_parameters(recurse=False), *persistent_buffers(module)]


def _load_ones(module: nn.Module) -> None:
    """Set parameters and persistent buffers of ones, fp32 if floating; they take no memory."""
    for key, tensor in _stored(module):
        dtype = torch.float32 if tensor.is_floating_point() else tensor.dtype
        ones = torch.ones((), dtype=dtype).expand(tensor.shape)
        is_parameter = isinstance(tensor, nn.Parameter)
        setattr(module, key, nn.Parameter(ones, requires_grad=False) if is_parameter else ones)


def _differ(one: Any, other: Any) -> bool:
    """Whether tensors in two lists of arguments differ."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape != other.shape or not torch.equal(one.nan_to_num(), other.nan_to_num())
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return any(map(_differ, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return any(_differ(value, other.get(key)) for key, value in one.items())
    return False
