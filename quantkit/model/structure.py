"""The structure of decoder blocks, found by tracing: no class per model family.

Linears that receive the same tensor object form a group. A producer whose output scale might be
folded into a group is proposed from the trace and kept only if scaling it by random factors leaves
the block's full-precision output unchanged.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from quantkit.core.errors import QuantkitError, RefusedError
from quantkit.model.skeleton import Skeleton, is_linear, linear_facts, persistent_buffers, said
from quantkit.model.walk import BlockInputs, embed

TOLERANCE = 1e-5
"""Largest relative change of a block's fp32 output under which a rescaling counts as exact:
above the rounding of fp32 (about 1e-7 an operation), below any change of the function."""

_TOKENS = 12
"""Length of the traced sequence: one forward is cheap, and later positions show token mixing."""


@dataclass(frozen=True)
class LinearGroup:
    """Linears of a block that read the same input tensor, in call order.

    `mixes_tokens`: one of them affects later positions, as keys and values do.
    """

    names: tuple[str, ...]
    mixes_tokens: bool


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
    """One kind of block: groups in call order, scale pairs, and the linears never called."""

    groups: tuple[LinearGroup, ...]
    pairs: tuple[ScalePair, ...]
    idle: tuple[str, ...]

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


def trace_structure(skeleton: Skeleton) -> Structure:
    """The structure of every block, from one forward of random numbers per kind of block.

    Raises:
        RefusedError: the blocks cannot be run one by one on hidden states.
    """
    try:
        return _traced(skeleton)
    except (QuantkitError, MemoryError):
        raise
    except Exception as error:  # modeling code can raise anything when a config is wrong
        raise RefusedError(
            f"the blocks of `{type(skeleton.model).__name__}` cannot be traced",
            why=f"{type(error).__name__}: {said(error)}",
            hint="use a decoder model whose blocks need hidden states only",
        ) from error


def _traced(skeleton: Skeleton) -> Structure:
    width = int(skeleton.model.config.get_text_config().hidden_size)
    hidden = torch.randn((1, _TOKENS, width), generator=torch.Generator().manual_seed(0))
    _, (inputs,) = embed(skeleton, _load_zeros, [{"inputs_embeds": hidden}])
    seen: dict[Any, int] = {}
    kinds: list[BlockStructure] = []
    blocks: list[int] = []
    for block, given in zip(skeleton.blocks, inputs, strict=True):
        key = (type(block).__name__, tuple((n, p.shape) for n, p in block.named_parameters()))
        if key not in seen:
            seen[key] = len(kinds)
            kinds.append(_trace_block(block, given, hidden, _head_dim(skeleton.model.config)))
        blocks.append(seen[key])
    return Structure(tuple(kinds), tuple(blocks))


def _head_dim(config: Any) -> int:
    text = config.get_text_config()
    stated = getattr(text, "head_dim", None)
    return int(stated or text.hidden_size // text.num_attention_heads)


def _load_zeros(_: str, module: nn.Module) -> None:
    for key, parameter in module.named_parameters(recurse=False):
        zeros = torch.zeros(parameter.shape)
        setattr(module, key, nn.Parameter(zeros, requires_grad=False))
    for key, buffer in persistent_buffers(module):
        setattr(module, key, torch.ones(buffer.shape, dtype=buffer.dtype))


def _trace_block(
    meta_block: nn.Module, given: BlockInputs, hidden: torch.Tensor, head_dim: int
) -> BlockStructure:
    """Trace one kind of block on `hidden`, fp32 (1, length, width); the block is copied."""
    block = _random_copy(meta_block)

    def run() -> torch.Tensor:
        return given.run(block, hidden)

    with torch.no_grad():
        calls, outputs = _record(block, run)
        groups = _groups(calls)
        reference = run()
        traced = tuple(
            LinearGroup(names, _mixes(block, names, run, reference)) for names, _ in groups
        )
        kept = [
            pair
            for names, tensor in groups
            for pair in _candidates(block, names, tensor, outputs, head_dim)
            if _exact(block, pair, run, reference)
        ]
    called = {name for names, _ in groups for name in names}
    linears = [name for name, module in block.named_modules() if is_linear(module)]
    first = {pair.consumers: pair for pair in reversed(kept)}
    return BlockStructure(
        traced, tuple(first.values())[::-1], tuple(n for n in linears if n not in called)
    )


def _random_copy(meta_block: nn.Module) -> nn.Module:
    """The block in fp32 with random weights of a size that keeps activations near one."""
    block = copy.deepcopy(meta_block).to_empty(device="cpu").float()
    original = dict(meta_block.named_buffers())
    for name, buffer in block.named_buffers():
        buffer.copy_(torch.ones(()) if original[name].is_meta else original[name])
    generator = torch.Generator().manual_seed(1)
    for parameter in block.parameters():
        values = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim == 1:
            parameter.data.copy_(1 + 0.1 * values)
        else:
            parameter.data.copy_(values / parameter.shape[-1] ** 0.5)
    return block


Calls = list[tuple[str, torch.Tensor]]


def _record(block: nn.Module, run: Callable[[], torch.Tensor]) -> tuple[Calls, Calls]:
    """Inputs of the linears and outputs of all modules, in call order, as fp32 (.., features).

    The tensors are kept alive: `_groups` compares them by `id`, which Python reuses.
    """
    inputs: Calls = []
    outputs: Calls = []
    handles = []
    for name, module in block.named_modules():
        if is_linear(module):
            handles.append(
                module.register_forward_pre_hook(
                    lambda _, args, name=name: inputs.append((name, args[0]))
                )
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
        run()
    finally:
        for handle in handles:
            handle.remove()
    return inputs, outputs


def _groups(calls: Calls) -> list[tuple[tuple[str, ...], torch.Tensor]]:
    """Names of the linears that read one tensor object, and that tensor, fp32 (.., features)."""
    members: dict[int, list[str]] = {}
    tensors: dict[int, torch.Tensor] = {}
    for name, tensor in calls:
        members.setdefault(id(tensor), []).append(name)
        tensors[id(tensor)] = tensor
    return [(tuple(names), tensors[key]) for key, names in members.items()]


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
        changed = out.clone()
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
    s = torch.rand(rows, generator=generator) * 1.5 + 0.5
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
