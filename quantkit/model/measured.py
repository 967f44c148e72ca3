"""What transformers' own class makes of a config: its tensors, and what its cache holds.

The model is built on the meta device and runs there on a short and on a long sequence. What grows
with the sequence, what stops at a window and what is always of one size is seen by its shapes.
"""

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from quantkit.checkpoint.quantization import plain_config
from quantkit.core.errors import QuantkitError, RefusedError
from quantkit.model.experts import fused_in, is_fused
from quantkit.model.skeleton import block_list, build_model, persistent_buffers, read_config, said

SHORT = 4
"""Tokens of the first run: fewer than any window has."""
LONGER = 1024
"""Tokens that the second run has more than the first, or than the widest window."""
LONGEST = 1 << 14
"""Tokens of a third run, where not every token is cached: shows how many share a vector."""


@dataclass(frozen=True)
class Cached:
    """Vectors in a block's cache: `heads` of `width` elements for a token, or for `every` tokens.

    `window`: what it keeps, and the token that reads it, are so many tokens; None is all.
    """

    heads: int
    width: int
    window: int | None = None
    every: int = 1


@dataclass(frozen=True)
class State:
    """A tensor of a block's cache whose shape does not depend on the sequence.

    `wide`: in fp32 in a 16-bit model. `steps`: of those that a convolution looks back on.
    """

    shape: tuple[int, ...]
    wide: bool
    steps: bool


@dataclass(frozen=True)
class Measured:
    """A model as its class builds it: shapes of tensors by name, experts one by one.

    `blocks`: module path of the decoder blocks. `embedding` and `head` name weights; the head is
    empty where it is tied or absent. `text`: sizes of the text model as its config class gives
    them. `caches`: of each block. `active`: experts of a token, by block.
    """

    shapes: Mapping[str, tuple[int, ...]]
    buffers: frozenset[str]
    blocks: str
    embedding: str
    head: str
    text: Mapping[str, Any]
    caches: tuple[tuple[Cached | State, ...], ...]
    active: Mapping[int, int]


def measure(config: Mapping[str, Any]) -> Measured:
    """Tensors and cache of the model that a config.json's object describes; runs no custom code.

    Raises:
        RefusedError: transformers does not know the config, it needs custom code, is no decoder, or
            does not run on the meta device.
    """
    model = _built(config)
    blocks = block_list(model)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    stacks = ((path, module) for path, module in model.named_modules() if is_fused(module))
    for fused in (each for path, module in stacks for each in fused_in(path, module)):
        one = torch.empty(shapes.pop(fused.name)[1:], device="meta")
        parts = [tuple(fused.part(one, place).shape) for place in range(len(fused.roles))]
        for name, _, place in fused.parts():
            shapes[name] = parts[place]
    buffers = {
        f"{path}.{name}".removeprefix("."): tuple(buffer.shape)
        for path, module in model.named_modules()
        for name, buffer in persistent_buffers(module)
    }
    caches, active = _run(model, blocks)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    embedding, head = (names.get(id(getattr(end, "weight", None)), "") for end in ends)
    text = model.config.get_text_config(decoder=True)
    return Measured(
        shapes=shapes | buffers,
        buffers=frozenset(buffers),
        blocks=blocks,
        embedding=embedding,
        head="" if head == embedding else head,
        text={**text.to_dict(), **_renamed(text)},
        caches=caches,
        active=active,
    )


def _built(config: Mapping[str, Any]) -> Any:
    """The model in bf16, so that what its code keeps in fp32 shows."""
    plain = plain_config(config)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(plain))
        try:
            read = read_config(Path(folder))
        except QuantkitError as error:
            custom = isinstance(error, RefusedError)
            raise RefusedError(
                f"plan cannot build model_type {config.get('model_type')!r:.60}",
                why="its code lies in its repository" if custom else error.why,
                hint="the folder with its safetensors files, or a decoder of transformers",
            ) from error
    read.dtype = torch.bfloat16
    return build_model(read)


def _renamed(text: Any) -> dict[str, Any]:
    """The sizes that a config class has under a further name, by that."""
    found = {name: getattr(text, name, None) for name in type(text).attribute_map}
    return {name: value for name, value in found.items() if value is not None}


class _Standin(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not annotate it
    """Answers what a meta tensor has no answer to: any number is 1, and every mask full."""

    def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        first = args[0] if args else None
        if isinstance(first, torch.Tensor) and first.is_meta:
            if func is torch.ops.aten._local_scalar_dense.default:  # noqa: SLF001 - `Tensor.item`
                return torch.ones((), dtype=first.dtype).tolist()
            if func is torch.ops.aten.nonzero.default:
                shape = (first.numel(), first.dim())
                return torch.empty(shape, dtype=torch.long, device="meta")
        return func(*args, **(kwargs or {}))


def _run(
    model: Any, blocks: str
) -> tuple[tuple[tuple[Cached | State, ...], ...], Mapping[int, int]]:
    """What each block caches, and the experts of a token in each that has some."""
    active: dict[int, int] = {}
    for path, module in model.named_modules():
        if is_fused(module):
            module.forward = _passing(active, _index(path, blocks))
    try:
        with torch.no_grad(), torch.device("meta"), _Standin():  # type: ignore[no-untyped-call]
            short, windows = _cached(model, SHORT)
            length = max(windows, default=0) + SHORT + LONGER
            long, _ = _cached(model, length)
            kinds = _kinds(short, long, length)
            if any(isinstance(kind, Cached) and kind.every > 1 for kind in kinds.values()):
                long, _ = _cached(model, LONGEST)
                kinds = _kinds(short, long, LONGEST)
    except QuantkitError:
        raise
    except Exception as error:  # modeling code can raise anything without values
        if any("expert_size" in signature(m.forward).parameters for m in model.modules()):
            raise RefusedError(
                f"plan cannot size model_type {model.config.model_type!r} from its config alone",
                why="its experts are outside transformers' registry, and sort tokens by values, "
                "which a model without weights has none of",
                hint="the folder with its safetensors files, or its hub id",
            ) from error
        raise RefusedError(
            f"the cache of `{model.config.model_type}` cannot be measured",
            why=f"{type(error).__name__}: {said(error)}",
            hint="a decoder that runs on text alone",
        ) from error
    depth = len(model.get_submodule(blocks))
    found: list[list[Cached | State]] = [[] for _ in range(depth)]
    for (layer, _), kind in kinds.items():
        found[layer % depth].append(kind)
    return tuple(map(tuple, found)), active


def _passing(active: dict[int, int], block: int) -> Any:
    """A forward for experts that notes how many a token has, and computes nothing."""

    def forward(hidden_states: torch.Tensor, top_k_index: torch.Tensor, *_: Any) -> torch.Tensor:
        active[block] = top_k_index.shape[-1]
        return torch.empty_like(hidden_states)

    return forward


def _index(path: str, blocks: str) -> int:
    rest = path.removeprefix(f"{blocks}.").partition(".")[0]
    return int(rest) if rest.isdecimal() else -1


Tensors = dict[tuple[int, str], torch.Tensor]


def _cached(model: Any, tokens: int) -> tuple[Tensors, list[int]]:
    """Every tensor in the cache after `tokens` tokens, by layer and name; the windows of layers."""
    output = model(input_ids=torch.zeros(1, tokens, dtype=torch.long), use_cache=True)
    names = ("past_key_values", "cache_params", "state")
    cache = next((output[name] for name in names if output.get(name) is not None), None)
    layers: Sequence[Any] = getattr(cache, "layers", None) or [cache]
    found: Tensors = {}
    for index, layer in enumerate(layers):
        seen: set[int] = set()
        for name, tensor in _tensors(vars(layer) if hasattr(layer, "__dict__") else layer, ""):
            if id(tensor) not in seen:
                seen.add(id(tensor))
                found[index, name] = tensor
    windows = (getattr(layer, "sliding_window", None) for layer in layers)
    return found, [width for width in windows if isinstance(width, int)]


def _tensors(held: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Floating-point tensors inside lists and dicts, by their path."""
    if isinstance(held, torch.Tensor):
        if held.is_floating_point():
            yield name, held
    elif isinstance(held, Mapping | list | tuple):
        entries = held.items() if isinstance(held, Mapping) else enumerate(held)
        for key, entry in entries:
            yield from _tensors(entry, f"{name}.{key}")


def _kinds(short: Tensors, long: Tensors, length: int) -> dict[tuple[int, str], Cached | State]:
    """What each cached tensor is, by its shapes after SHORT and after `length` tokens."""
    found: dict[tuple[int, str], Cached | State] = {}
    for key, tensor in long.items():
        after = tuple(tensor.shape)
        before = tuple(short[key].shape) if key in short else (*after[:1], 0, *after[2:])
        grown = [d for d, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
        if not tensor.numel():
            continue
        if not grown:
            wide, steps = tensor.dtype == torch.float32, "conv" in key[1]
            found[key] = State(after[1:], wide, steps)
            continue
        place, width = grown[0], after[-1]
        entries = after[place]
        heads = tensor.numel() // (entries * width)
        if entries == length:
            found[key] = Cached(heads, width)
        elif before[place] == SHORT:
            found[key] = Cached(heads, width, window=entries + 1)
        else:
            found[key] = Cached(heads, width, every=round(length / entries))
    return found
