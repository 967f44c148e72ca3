"""An open model, plain or quantized: its tensors one at a time, its blocks one after the other."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from quantkit.checkpoint.checkpoint import Checkpoint
from quantkit.checkpoint.finite import require_finite
from quantkit.checkpoint.quantization import quantization_block
from quantkit.core.errors import InputError
from quantkit.core.facts import STORED
from quantkit.core.format import Format, Schemes
from quantkit.core.progress import Progress, Report, silent
from quantkit.core.resources import TOKENS_PER_BATCH
from quantkit.core.scheme import Scheme
from quantkit.grid.activation import STATIC, change_of, inputs_change
from quantkit.grid.kv_cache import CacheScales
from quantkit.grid.qtensor import QTensor
from quantkit.grid.transfer import to_device
from quantkit.model.attention import round_cache
from quantkit.model.batches import Batches, Room
from quantkit.model.calls import BlockInputs
from quantkit.model.format_codes import format_codes
from quantkit.model.head import Head
from quantkit.model.peaks import Peaks
from quantkit.model.skeleton import (
    Skeleton,
    is_linear,
    is_transposed,
    linear_facts,
    persistent_buffers,
    tied_to,
)
from quantkit.model.walk import Keep, embed, leave, once, release
from quantkit.model.weight_map import Convert, Place, WeightMap, map_weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel


CONVERSIONS = 4
"""Kept at a time: the first and second matrices of a layer's experts, and their biases."""


@dataclass(frozen=True)
class OpenModel:
    """A skeleton and the checkpoint that its weights come from, one tensor at a time.

    `weights` says where in the checkpoint each tensor of the skeleton lies.

    `source_dtype` is the stored dtype, `dtype` that of the computation: the same, except fp32 for
    fp16 models on a CPU, which has no fast fp16 arithmetic. `format` is None for a plain model.
    `cache`: the scales of keys and values, by the path of an attention. `room`: where hidden states
    wait between two blocks. `aside`: stored tensors that nothing of the model is read from, such as
    draft layers.
    """

    skeleton: Skeleton
    checkpoint: Checkpoint
    weights: WeightMap
    format: Format | None
    source_dtype: torch.dtype
    dtype: torch.dtype
    device: torch.device
    cache: Mapping[str, CacheScales] = field(default_factory=dict)
    room: Room = list
    aside: tuple[str, ...] = ()

    @property
    def dtype_name(self) -> str:
        """The model's own dtype as config files write it: "bfloat16", "float16", "float32"."""
        return str(self.source_dtype).removeprefix("torch.")

    @property
    def config(self) -> Any:
        """The transformers config."""
        return self.skeleton.model.config

    @property
    def text_config(self) -> Any:
        """The part of it that describes the decoder."""
        return self.config.get_text_config(decoder=True)

    def dense(self) -> "OpenModel":
        """The model with its quantized linears decoded; a plain one as it is."""
        if self.format is None:
            return self
        coding = format_codes(
            self.skeleton, self.weights, self.format, self.dtype_name, self.scheme
        )
        checkpoint = self.checkpoint.decoded(coding)
        weights = map_weights(self.skeleton.rules, checkpoint.names)
        return replace(self, checkpoint=checkpoint, weights=weights, format=None, cache={})

    def place(self, name: str) -> Place | None:
        """Where tensor `name` of the model is stored; None where it is not."""
        return self.weights.places.get(self._holder(name))

    def stored_name(self, name: str) -> str:
        """The name of tensor `name` of the model in the checkpoint and its artifacts.

        Raises:
            InputError: the checkpoint does not contain it.
        """
        self._require(name)
        return self.weights.stored_as(self._holder(name))

    def _holder(self, name: str) -> str:
        """The tensor that is stored for tensor `name`: itself, or the one that it is tied to."""
        if name in self.weights.places:
            return name
        return tied_to(self.skeleton.model, name) or name

    def _require(self, name: str) -> Place:
        place = self.place(name)
        if place is None:
            raise InputError(
                f"`{name}` is not in `{self.checkpoint.folder}`",
                hint="a folder whose safetensors files hold the whole model",
            )
        return place

    def stored_spec(self, name: str) -> tuple[str, tuple[str, tuple[int, ...]]]:
        """Stored name of tensor `name` of the model, with its dtype (safetensors') and shape."""
        place = self._require(name)
        dtype = self.checkpoint.names[place.names[0]].dtype
        return self.stored_name(name), (dtype, place.shape(self.checkpoint.names))

    def stored(self, name: str) -> torch.Tensor:
        """Tensor `name` of the model in its stored dtype, in CPU memory of its own.

        Raises:
            InputError: the checkpoint does not contain it.
        """
        return self._require(name).tensor(self.checkpoint.tensor, self._converted)

    @cached_property
    def _converted(self) -> Convert:
        """Runs a conversion; the latest results are kept, as a layer's experts share a few."""
        return lru_cache(CONVERSIONS)(lambda conversion: conversion.run(self.checkpoint.tensor))

    def scheme(self, linear: str) -> Scheme | None:
        """The scheme of module `linear`; None where it is dense."""
        return None if linear in self._plain else self.stated(linear)

    def stated(self, linear: str) -> Scheme | None:
        """As `scheme`, by the config alone, however the linear is stored."""
        if self.format is None:
            return None
        return self._schemes(self.weights.modules.get(linear, linear))

    @cached_property
    def _plain(self) -> frozenset[str]:
        """Linears that are stored as a weight in floats alone: configs forget to exclude some."""
        beside: dict[str, set[str]] = {}
        for name in self.weights.places:
            module, _, key = name.rpartition(".")
            beside.setdefault(module, set()).add(key)
        return frozenset(
            path
            for path, module in self.skeleton.model.named_modules()
            if is_linear(module)
            and beside.get(path, set()) <= {"weight", "bias"}
            and (place := self.place(f"{path}.weight")) is not None
            and self.checkpoint.names[place.names[0]].dtype in STORED.values()
        )

    @cached_property
    def _schemes(self) -> Schemes:
        block = quantization_block(self.checkpoint.config)
        assert self.format is not None
        assert block is not None
        return self.format.parse(block)

    def qtensor(self, linear: str) -> QTensor:
        """The codes and scales of a quantized linear, decoded on `device`; (out, in_features).

        Raises:
            InputError: a tensor that the format needs is missing, or not what it should be.
        """
        scheme = self.scheme(linear)
        assert self.format is not None
        assert scheme is not None
        facts = linear_facts(linear, self.skeleton.model.get_submodule(linear))
        tensors, names = {}, set[str]()
        for suffix in self.format.layout(scheme, facts, self.dtype_name):
            place = self.place(f"{linear}.{suffix}")
            if place is None:
                raise InputError(
                    f"`{linear}.{suffix}` is not in `{self.checkpoint.folder}`",
                    why=f"format {self.format.name} needs it",
                    hint="quantize again, or exclude the module in quantization_config",
                )
            stored = place.tensor(self.checkpoint.tensor, self._converted)
            tensors[suffix] = to_device(stored, self.device)
            names.update(place.names)
        try:
            return self.format.decode(tensors, scheme, facts)
        except InputError as error:
            what = f"{error.what}, in {self.checkpoint.shards(names)}"
            raise InputError(what, why=error.why, hint=error.hint) from error

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...] | None]]:
        """Name and shape of each loaded tensor; None where the format's decode checks it."""
        for path, module in self.skeleton.model.named_modules():
            parameters = module.named_parameters(recurse=False)
            for key, tensor in (*parameters, *persistent_buffers(module)):
                scheme = self.scheme(path) if key == "weight" and is_linear(module) else None
                if scheme is None or self.format is None:
                    yield f"{path}.{key}" if path else key, tuple(tensor.shape)
                    continue
                facts = linear_facts(path, module)
                for suffix in self.format.layout(scheme, facts, self.dtype_name):
                    yield f"{path}.{suffix}", None

    def parameter(self, name: str) -> torch.Tensor:
        """Parameter `name` in the module's own shape, decoded, in `dtype`, on `device`.

        What transformers keeps in fp32 is in fp32. A Conv1D weight is (in_features, out_features).
        The caller may modify the tensor.

        Raises:
            InputError: the checkpoint does not contain it.
            IntegrityError: it contains NaN or Inf.
        """
        linear, _, key = name.rpartition(".")
        module = self.skeleton.model.get_submodule(linear)
        if key == "weight" and is_linear(module) and self.scheme(linear) is not None:
            weight = self.qtensor(linear).dequantize(self.dtype)
            weight = weight.T.contiguous() if is_transposed(module) else weight
            return to_device(weight, self.device)
        wide = self.skeleton.is_wide(name, self.dtype)
        stored = self.stored(name)
        require_finite(name, stored)
        return to_device(stored, self.device, torch.float32 if wide else self.dtype)

    def load(self, name: str, module: nn.Module) -> None:
        """Set the real parameters and buffers of `module`, not those of its children."""
        for key, _ in list(module.named_parameters(recurse=False)):
            tensor = self.parameter(f"{name}.{key}" if name else key)
            setattr(module, key, nn.Parameter(tensor, requires_grad=False))
        for key, meta in persistent_buffers(module):
            setattr(module, key, self._buffer(f"{name}.{key}" if name else key, meta.dtype))

    def _buffer(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """Buffer `name`, of any shape, in its own `dtype`; the model's becomes `self.dtype`."""
        kept = self.dtype if dtype is self.source_dtype else dtype
        return to_device(self.stored(name), self.device, kept)

    def load_block(self, index: int) -> nn.Module:
        """Block `index` with its weights in memory; `drop` releases them."""
        block = self.skeleton.blocks[index]
        for name, module in block.named_modules():
            self.load(".".join(filter(None, (self.skeleton.block_name(index), name))), module)
        for name, linear in block.named_modules():
            path = f"{self.skeleton.block_name(index)}.{name}"
            if change := self._input_change(path) if is_linear(linear) else None:
                linear.register_forward_pre_hook(lambda _, args, change=change: change(args[0]))
            if scales := self.cache.get(path):
                round_cache(linear, scales.change)
        return block

    def _input_change(self, linear: str) -> Callable[[torch.Tensor], torch.Tensor] | None:
        """What the input of a quantized linear goes through at run time; None: nothing."""
        scheme = self.scheme(linear)
        if scheme is None or scheme.activation is None:
            return None
        if scheme.activation in STATIC:
            return inputs_change(self.qtensor(linear))
        return change_of(scheme.activation, None)

    def enter(
        self, *input_ids: torch.Tensor, keep: Keep = lambda hidden: hidden
    ) -> tuple[Batches, list[list[BlockInputs]]]:
        """Batches of hidden states before the first block, and how each block is called on them.

        Each of `input_ids` is int64 (windows, length), each batch (sequences, length, width) in
        `dtype`, as `keep` leaves it. The lists of calls are per batch, one entry for each block.
        """
        for windows in input_ids:
            check_ids(self, windows)
        batches = [
            ids
            for windows in input_ids
            for ids in torch.split(windows.to(self.device), batch_size(windows.shape[1]))
        ]
        return embed(self.skeleton, self.load, batches, keep, self.room)

    def walk(self, *input_ids: torch.Tensor, report: Report = silent) -> Iterator[Batches]:
        """Yield the batches of output after each block; one block's weights are in memory.

        Each of `input_ids`, int64 (windows, length), is batched by itself; a batch of output is
        (sequences, length, width) in `dtype`. The same sequence is yielded each time and goes on to
        the next block: a caller may replace its items, and the next block computes with them.
        """
        batches, calls = self.enter(*input_ids)
        count = len(self.skeleton.blocks)
        with Peaks(self.device) as peaks:
            for index in range(count):
                block = self.load_block(index)
                try:
                    with torch.no_grad():
                        for i, hidden in enumerate(batches):
                            batches[i] = calls[i][index].run(block, to_device(hidden, self.device))
                finally:  # others may share the skeleton
                    drop(block)
                said = peaks.beside(self.skeleton.block_name(index))
                report(Progress("forward", index + 1, count, said))
                yield batches

    def hidden_states(self, input_ids: torch.Tensor, report: Report = silent) -> torch.Tensor:
        """The last block's output (windows, length, width), in `dtype`; ids are int64."""
        batches: Batches = []
        for batches in self.walk(input_ids, report=report):  # noqa: B007 - the last are wanted
            pass
        return torch.cat(list(batches))

    def head(self) -> Head:
        """Rows of the last block's output (rows, width) -> fp32 logits (rows, vocabulary).

        The weights are read at the first call and kept as long as the head is; between two calls
        the skeleton has none, so that models that share it may take turns.
        """
        load, module = once(self.load), self.skeleton.model.get_submodule(self.skeleton.head)
        return Head(module, lambda hidden: leave(self.skeleton, load, hidden), self.dtype)


def batch_size(length: int) -> int:
    """Windows of so many tokens that a model runs at a time."""
    return max(1, TOKENS_PER_BATCH // length)


def computed_in(source: torch.dtype, device: torch.device) -> torch.dtype:
    """The dtype to compute in for a stored dtype `source`: a CPU has no fast fp16."""
    return torch.float32 if source is torch.float16 and device.type == "cpu" else source


def check_ids(model: OpenModel, input_ids: torch.Tensor) -> None:
    """Check that the model has an embedding for every id in `input_ids`, int64 (windows, length).

    Raises:
        InputError: tokens were added to the tokenizer and not to the model.
    """
    known = model.skeleton.model.get_input_embeddings().weight.shape[0]
    highest = int(input_ids.max())
    if highest >= known:
        raise InputError(
            f"the tokenizer of `{model.checkpoint.folder}` produces token id {highest:,}",
            why=f"the model has embeddings for {known:,} tokens",
            hint="use the tokenizer that belongs to this model",
        )


def drop(block: nn.Module) -> None:
    """Release a loaded block's weights and remove its hooks."""
    release(block)
    for module in block.modules():
        module._forward_pre_hooks.clear()  # noqa: SLF001 - torch has no public way to list them


def load_dense(model: OpenModel) -> "PreTrainedModel":
    """The whole model in memory, decoded, as transformers runs it (for generation)."""
    network = model.skeleton.model
    for name, module in network.named_modules():
        if name.startswith(model.skeleton.prefix + "."):
            continue
        model.load(name, module)
    for index in range(len(model.skeleton.blocks)):
        model.load_block(index)
    return network


def context_length(model: OpenModel) -> int:
    """The config's `max_position_embeddings`, in tokens; 2^30 where it states none."""
    return int(getattr(model.text_config, "max_position_embeddings", None) or 1 << 30)
