"""The structure of decoder blocks, found by tracing: no class per model family.

Linears that receive the same tensor object form a group. A producer whose output scale might be
folded into a group is proposed from the trace and kept only if scaling it by random factors leaves
the block's full-precision output unchanged.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import nn

from quantkit.core.errors import QuantkitError, RefusedError
from quantkit.model.attentions import Attention, attentions_of
from quantkit.model.calls import BlockInputs
from quantkit.model.experts import experts_in, stage_of, to_each_expert
from quantkit.model.routers import routers_of
from quantkit.model.skeleton import Skeleton, is_linear, linear_facts, persistent_buffers, said
from quantkit.model.trial import Calls, random_copy, record
from quantkit.model.walk import embed

TOLERANCE = 1e-5
"""Largest relative change of a block's fp32 output under which a rescaling counts as exact:
above the rounding of fp32 (about 1e-7 an operation), below any change of the function."""

CPU = torch.device("cpu")
NONE: Mapping[str, str] = MappingProxyType({})
_TOKENS = 12
"""Length of the traced sequence: one forward is cheap, and later positions show token mixing."""


@dataclass(frozen=True)
class LinearGroup:
    """Linears of a block that read the same input tensor, in call order.

    `mixes_tokens`: one of them affects later positions, as keys and values do. `stage`: the module
    that the inputs of this and of the same groups of all other experts pass through. `calls`: how
    often each is called in one forward; what they read then is the same for all.
    """

    names: tuple[str, ...]
    mixes_tokens: bool
    stage: str = ""
    calls: int = 1

    @property
    def expert(self) -> int:
        """The number of the expert that the group of a stage belongs to."""
        return int(self.names[0].split(".")[-2])


@dataclass(frozen=True)
class ScalePair:
    """A producer whose outputs may be divided by s while the columns of `consumers` are multiplied.

    kind: "norm" scales its weight (and bias); "norm_offset" one that acts as 1 + weight;
    "linear" scales the rows of a linear. One row serves `repeat` columns, in runs of `run` rows
    (grouped-query attention; 1 where they map one to one).
    """

    producer: str
    kind: Literal["norm", "norm_offset", "linear"]
    consumers: tuple[str, ...]
    repeat: int = 1
    run: int = 1

    def columns(self, rows: torch.Tensor) -> torch.Tensor:
        """Copy a vector (rows,) of the producer to (columns,) of the consumers; any dtype."""
        return rows.view(-1, self.run).repeat_interleave(self.repeat, 0).flatten()

    def rows(self, columns: torch.Tensor) -> torch.Tensor:
        """The maximum (rows,) of the columns that each row serves, from (columns,); any dtype."""
        return columns.view(-1, self.repeat, self.run).amax(1).flatten()


@dataclass(frozen=True)
class BlockStructure:
    """One kind of block: groups in call order, scale pairs, and the linears outside of groups.

    `idle` linears are never called; `routers` weigh experts, or a shared expert, for each token.
    The weights of `held` linears are those of linears that an earlier block calls. The `unreached`
    groups are those of experts that no text is sent to, as images are. `attentions` are in call
    order.
    """

    groups: tuple[LinearGroup, ...]
    pairs: tuple[ScalePair, ...]
    idle: tuple[str, ...]
    routers: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    unreached: tuple[LinearGroup, ...] = ()
    attentions: tuple[Attention, ...] = ()

    def pair_of(self, group: LinearGroup) -> ScalePair | None:
        """The pair that feeds `group`, if its producer can be rescaled."""
        return next((p for p in self.pairs if p.consumers == group.names), None)


@dataclass(frozen=True)
class Structure:
    """The kind of each block; each kind is traced once, so depth adds no cost."""

    kinds: tuple[BlockStructure, ...]
    blocks: tuple[int, ...]

    def of(self, index: int) -> BlockStructure:
        """The structure of block `index`."""
        return self.kinds[self.blocks[index]]

    def attentions(self, skeleton: Skeleton) -> dict[str, Attention]:
        """All attentions by their full paths."""
        return {
            f"{skeleton.block_name(index)}.{each.path}": each
            for index in range(len(skeleton.blocks))
            for each in self.of(index).attentions
        }


def trace_structure(
    skeleton: Skeleton, repeats: Mapping[str, str] = NONE, device: torch.device = CPU
) -> Structure:
    """The structure of every block, from forwards of random numbers on `device` per kind of block.

    `repeats`, as in `WeightMap`, names modules with the weights of others. None of these is
    rescaled: it would have to suit several blocks.

    Raises:
        RefusedError: the blocks cannot be run one by one on hidden states.
    """
    try:
        return _traced(skeleton, repeats, device)
    except (QuantkitError, MemoryError):
        raise
    except Exception as error:  # modeling code can raise anything when a config is wrong
        raise RefusedError(
            f"the blocks of `{type(skeleton.model).__name__}` cannot be traced",
            why=f"{type(error).__name__}: {said(error)}",
            hint="use a decoder model whose blocks need hidden states only",
        ) from error


def _traced(skeleton: Skeleton, repeats: Mapping[str, str], device: torch.device) -> Structure:
    ids = torch.arange(_TOKENS, device=device)[None]
    (entered,), (inputs,) = embed(skeleton, partial(_load_zeros, device), [ids])
    hidden = torch.randn(entered.shape, generator=torch.Generator().manual_seed(0)).to(device)
    seen: dict[Any, int] = {}
    kinds: list[BlockStructure] = []
    blocks: list[int] = []
    shared, called = {*repeats, *repeats.values()}, set[str]()
    for index, (block, given) in enumerate(zip(skeleton.blocks, inputs, strict=True)):
        paths = {name: f"{skeleton.block_name(index)}.{name}" for name, _ in block.named_modules()}
        own = {name: repeats.get(path, path) for name, path in paths.items() if path in shared}
        held = tuple(name for name, path in own.items() if path in called)
        shapes = tuple((n, p.shape) for n, p in block.named_parameters())
        key = (type(block).__name__, shapes, tuple(own), held)
        if key not in seen:
            seen[key] = len(kinds)
            head_dim = _head_dim(skeleton.model.config, block)
            found = _trace_block(block, given, hidden, head_dim, held)
            kept = (p for p in found.pairs if own.keys().isdisjoint((p.producer, *p.consumers)))
            kinds.append(replace(found, pairs=tuple(kept)))
        blocks.append(seen[key])
        groups = kinds[seen[key]].groups
        called |= {own[name] for group in groups for name in group.names if name in own}
    return Structure(tuple(kinds), tuple(blocks))


def _head_dim(config: Any, block: nn.Module) -> int:
    """The width of a block's attention heads; one that no linear has where nothing states it."""
    text = config.get_text_config(decoder=True)
    try:
        stated, heads = getattr(text, "head_dim", None), getattr(text, "num_attention_heads", None)
    except Exception:  # noqa: BLE001 - configs with a value for each layer raise errors of their own
        found = (getattr(module, "head_dim", None) for module in block.modules())
        stated, heads = next((size for size in found if isinstance(size, int)), None), None
    if isinstance(stated, int) and stated > 0:
        return stated
    return text.hidden_size // heads if isinstance(heads, int) else 1 << 30


def _load_zeros(device: torch.device, _: str, module: nn.Module) -> None:
    """Set parameters of zeros in fp32, which take no memory, and persistent buffers of ones."""
    for key, parameter in module.named_parameters(recurse=False):
        zeros = torch.zeros((), device=device).expand(parameter.shape)
        setattr(module, key, nn.Parameter(zeros, requires_grad=False))
    for key, buffer in persistent_buffers(module):
        setattr(module, key, torch.ones(buffer.shape, dtype=buffer.dtype, device=device))


def _trace_block(
    meta_block: nn.Module,
    given: BlockInputs,
    hidden: torch.Tensor,
    head_dim: int,
    held: tuple[str, ...],
) -> BlockStructure:
    """Trace one kind of block on `hidden`, fp32 (1, length, width); the block is copied.

    Linears that are `held` take part in no group.

    All experts are alike: one of them is traced, on all tokens, and stands for the others.
    """
    block = random_copy(meta_block, hidden.device)
    stacks = dict(experts_in(block))
    every = dict(experts_in(meta_block))

    def run() -> torch.Tensor:
        return given.run(block, hidden)

    with torch.no_grad():
        calls, outputs, odd, seen = record(block, run)
        routers = (*routers_of(block, run, (name for name, _ in calls)), *dict.fromkeys(odd))
        groups = _groups([call for call in calls if call[0] not in (*routers, *held)])
        reference = run()
        traced = [
            LinearGroup(
                names, _mixes(block, names, run, reference), stage_of(names[0], stacks), len(read)
            )
            for names, read in groups
        ]
        kept = [
            pair
            for names, read in groups
            for pair in _candidates(block, names, read[0], outputs, head_dim)
            if _exact(block, pair, run, reference)
        ]
    first = {pair.consumers: pair for pair in reversed(kept)}
    whole = tuple(
        replace(group, names=tuple(map(change, group.names)))
        for group in traced
        for change in to_each_expert(group.names[0], every)
    )
    pairs = tuple(
        replace(pair, producer=change(pair.producer), consumers=tuple(map(change, pair.consumers)))
        for pair in tuple(first.values())[::-1]
        for change in to_each_expert(pair.consumers[0], every)
    )
    others = {*routers, *held, *(name for group in whole for name in group.names)}
    linears = [name for name, module in meta_block.named_modules() if is_linear(module)]
    idle = tuple(name for name in linears if name not in others)
    unreached = tuple(_of_experts(idle, every))
    found = {name for group in unreached for name in group.names}
    idle = tuple(name for name in idle if name not in found)
    last = {name: place for place, (name, _) in enumerate(calls)}
    before = [last[g.names[0]] for g in traced for _ in to_each_expert(g.names[0], every)]
    attentions = attentions_of(block, seen, before)
    return BlockStructure(whole, pairs, idle, routers, held, unreached, attentions)


def _of_experts(idle: Sequence[str], stacks: Iterable[str]) -> Iterator[LinearGroup]:
    """The `idle` linears of experts, by the input that each would have."""
    for path in stacks:
        found: dict[tuple[str, bool], list[str]] = {}
        for name in idle:
            if name.startswith(f"{path}."):
                expert, _, role = name.rpartition(".")
                found.setdefault((expert, role == "down_proj"), []).append(name)
        yield from (LinearGroup(tuple(names), mixes_tokens=False) for names in found.values())


def _groups(calls: Calls) -> list[tuple[tuple[str, ...], list[torch.Tensor]]]:
    """Names of the linears that read the same tensor objects, and these, fp32 (.., features).

    A group stands where it reads the last of them: its inputs are complete there.
    """
    read: dict[str, list[torch.Tensor]] = {}
    for name, tensor in calls:
        read.setdefault(name, []).append(tensor)
    groups: dict[tuple[int, ...], list[str]] = {}
    left = {name: len(tensors) for name, tensors in read.items()}
    for name, _ in calls:
        left[name] -= 1
        if not left[name]:
            groups.setdefault(tuple(map(id, read[name])), []).append(name)
    return [(tuple(names), read[names[0]]) for names in groups.values()]


def _mixes(
    block: nn.Module,
    names: Sequence[str],
    run: Callable[[], torch.Tensor],
    reference: torch.Tensor,
) -> bool:
    """Whether changing a linear's output at position 0 changes the block's output after it.

    `reference` is the unchanged output of `run`, fp32 (1, length, width).
    """

    def nudge(_: nn.Module, __: Any, out: torch.Tensor) -> torch.Tensor:
        changed = out.clone(memory_format=torch.contiguous_format)
        changed.view(-1, changed.shape[-1])[0] += 1.0
        return changed

    for name in names:
        handle = block.get_submodule(name).register_forward_hook(nudge)
        try:
            later = (run() - reference)[:, 1:]
        finally:
            handle.remove()
        if later.abs().max() > TOLERANCE * reference.abs().max():
            return True
    return False


def _candidates(
    block: nn.Module,
    names: tuple[str, ...],
    tensor: torch.Tensor,
    outputs: Calls,
    head_dim: int,
) -> Iterator[ScalePair]:
    """Producers that might be rescaled for a group: the norm before it, or an earlier linear.

    `tensor`, fp32 (.., features), is the input of the group; `outputs` are those of all modules.
    """
    width = _width(block, names)
    for name, out in outputs:
        module = block.get_submodule(name)
        weight = getattr(module, "weight", None)
        if out is tensor and weight is not None and weight.ndim == 1:
            yield ScalePair(name, "norm", names)
            yield ScalePair(name, "norm_offset", names)
    order = [name for name, _ in outputs]
    for name in order[: order.index(names[0])]:
        module = block.get_submodule(name)
        if not is_linear(module) or name in names:
            continue
        rows = linear_facts("", module).out_features
        if rows == width:
            yield ScalePair(name, "linear", names)
        elif width % rows == 0 and rows % head_dim == 0:
            yield ScalePair(name, "linear", names, width // rows, head_dim)


def _width(block: nn.Module, names: tuple[str, ...]) -> int:
    return linear_facts("", block.get_submodule(names[0])).in_features


def _exact(
    block: nn.Module, pair: ScalePair, run: Callable[[], torch.Tensor], reference: torch.Tensor
) -> bool:
    """Whether `pair` can be rescaled: `run` still gives `reference`, fp32 (1, length, width).

    Factors differ by row, from 0.5 to 2: equal ones could cancel in a norm between the two.
    """
    rows = pair.rows(torch.empty(_width(block, pair.consumers))).numel()
    generator = torch.Generator().manual_seed(2)
    s = (torch.rand(rows, generator=generator) * 1.5 + 0.5).to(reference.device)
    with _scaled(block, pair, s):
        change = (run() - reference).abs().max() / reference.abs().max()
    return bool(change <= TOLERANCE)


@contextmanager
def _scaled(block: nn.Module, pair: ScalePair, s: torch.Tensor) -> Iterator[None]:
    """Rescale `pair` by fp32 factors `s` (rows,) in place; the weights are restored at exit."""
    touched = [block.get_submodule(name) for name in (pair.producer, *pair.consumers)]
    saved = [{k: v.clone() for k, v in m.state_dict().items()} for m in touched]
    try:
        divide_producer(touched[0], pair.kind, s)
        for module in touched[1:]:
            multiply_columns(module, pair.columns(s))
        yield
    finally:
        for module, state in zip(touched, saved, strict=True):
            module.load_state_dict(state)


def divide_producer(module: nn.Module, kind: str, s: torch.Tensor) -> None:
    """Divide the output channels of a norm or linear by `s`, fp32 (out_features,), in place.

    With `multiply_columns` on the consumers, this is the equivalent transformation
    (X / s)(s W) of SmoothQuant, arXiv 2211.10438, equation 3. A "norm_offset" computes
    x (1 + weight), as Gemma's RMSNorm does.
    """
    weight: torch.Tensor = module.weight.data  # type: ignore[assignment]  # a Parameter
    if kind == "norm_offset":
        weight.copy_((1 + weight.float()) / s - 1)
    elif kind == "linear" and not (linear := linear_facts("", module)).transposed:
        weight.copy_(weight.float() / s.view(linear.out_features, 1))
    else:
        weight.copy_(weight.float() / s)
    bias = getattr(module, "bias", None)
    if bias is not None:
        bias.data.copy_(bias.data.float() / s)


def multiply_columns(module: nn.Module, s: torch.Tensor) -> None:
    """Multiply the input channels of a linear by `s`, fp32 (in_features,), in place."""
    weight: torch.Tensor = module.weight.data  # type: ignore[assignment]  # a Parameter
    weight.copy_(weight.float() * (s[:, None] if linear_facts("", module).transposed else s))
