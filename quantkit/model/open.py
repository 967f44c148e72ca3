"""A model folder, plain or quantized, opened for running block by block."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from quantkit.checkpoint.reader import Checkpoint, open_checkpoint
from quantkit.checkpoint.tensors import TORCH_DTYPES
from quantkit.core import registry
from quantkit.core.errors import InputError, RefusedError
from quantkit.core.format import Format
from quantkit.core.progress import Progress, Report, silent
from quantkit.core.resources import TOKENS_PER_BATCH
from quantkit.core.scheme import Scheme
from quantkit.grid.activation import int8_per_token
from quantkit.grid.qtensor import QTensor
from quantkit.model.complete import check_complete
from quantkit.model.skeleton import (
    Skeleton,
    build_skeleton,
    is_linear,
    is_transposed,
    linear_facts,
    persistent_buffers,
    read_config,
    source_name,
)
from quantkit.model.walk import BlockInputs, embed, leave, release

if TYPE_CHECKING:
    from transformers import PreTrainedModel


HEAD_ROWS = 8192
"""Rows of the output head that are widened to fp32 at once."""
SENSES = ("vision_config", "audio_config")
"""Of a multimodal model, in its config."""


@dataclass(frozen=True)
class OpenModel:
    """A skeleton and the checkpoint that its weights come from, one tensor at a time.

    `source_dtype` is the model's own, `dtype` that of the computation: the same, but fp32 for fp16
    models on a CPU, which has no fast fp16 arithmetic. `format` is None for a plain model.
    """

    skeleton: Skeleton
    checkpoint: Checkpoint
    format: Format | None
    source_dtype: torch.dtype
    dtype: torch.dtype
    device: torch.device

    @property
    def dtype_name(self) -> str:
        """The model's own dtype as config files write it: "bfloat16", "float16", "float32"."""
        return str(self.source_dtype).removeprefix("torch.")

    @property
    def config(self) -> Any:
        """The transformers config."""
        return self.skeleton.model.config

    def source_name(self, name: str) -> str | None:
        """The checkpoint's name of parameter `name`; None where it has none."""
        return source_name(self.skeleton.model, name, self.checkpoint.names)

    def scheme(self, linear: str) -> Scheme | None:
        """The scheme of module `linear`; None where it is dense."""
        if self.format is None:
            return None
        return self.format.parse(self.checkpoint.config["quantization_config"], linear)

    def qtensor(self, linear: str) -> QTensor:
        """The decoded codes and scales of a quantized linear.

        Raises:
            InputError: a tensor that the format needs is not in the checkpoint.
        """
        scheme = self.scheme(linear)
        assert self.format is not None
        assert scheme is not None
        facts = linear_facts(linear, self.skeleton.model.get_submodule(linear))
        tensors = {}
        for suffix in self.format.layout(scheme, facts, self.dtype_name):
            name = self.source_name(f"{linear}.{suffix}")
            if name is None:
                raise InputError(
                    f"`{linear}.{suffix}` is not in `{self.checkpoint.folder}`",
                    why=f"format {self.format.name} needs it",
                    hint="quantize again, or list the module as not converted",
                )
            tensors[suffix] = self.checkpoint.tensor(name)
        return self.format.decode(tensors, scheme, facts)

    def parameter(self, name: str) -> torch.Tensor:
        """Parameter `name` as the model computes with it: decoded, in `dtype`, on `device`.

        Raises:
            InputError: the checkpoint does not hold it.
        """
        linear, _, key = name.rpartition(".")
        module = self.skeleton.model.get_submodule(linear)
        if key == "weight" and is_linear(module) and self.scheme(linear) is not None:
            weight = self.qtensor(linear).dequantize(self.dtype)
            return (weight.T.contiguous() if is_transposed(module) else weight).to(self.device)
        return self.checkpoint.tensor(self._stored(name)).to(self.device, self.dtype)

    def _stored(self, name: str) -> str:
        """The checkpoint's name of tensor `name`."""
        source = self.source_name(name)
        if source is None:
            raise InputError(
                f"`{name}` is not in `{self.checkpoint.folder}`",
                hint="a folder whose safetensors files hold the whole model",
            )
        return source

    def load(self, name: str, module: nn.Module) -> None:
        """Give `module` (not its children) its real parameters and buffers."""
        for key, _ in list(module.named_parameters(recurse=False)):
            tensor = self.parameter(f"{name}.{key}")
            setattr(module, key, nn.Parameter(tensor, requires_grad=False))
        for key, meta in persistent_buffers(module):
            setattr(module, key, self._buffer(f"{name}.{key}", meta.dtype))

    def _buffer(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """Buffer `name` in the dtype that it was made in; the model's gives way to `self.dtype`."""
        kept = self.dtype if dtype is self.source_dtype else dtype
        return self.checkpoint.tensor(self._stored(name)).to(self.device, kept)

    def load_block(self, index: int) -> nn.Module:
        """Block `index` with its weights in memory; `release` lets go of them."""
        block = self.skeleton.blocks[index]
        for name, module in block.named_modules():
            self.load(".".join(filter(None, (self.skeleton.block_name(index), name))), module)
        for name, linear in block.named_modules():
            if is_linear(linear):
                scheme = self.scheme(f"{self.skeleton.block_name(index)}.{name}")
                if scheme is not None and scheme.activation == "int8-token":
                    linear.register_forward_pre_hook(lambda _, args: int8_per_token(args[0]))
        return block

    def enter(self, *input_ids: torch.Tensor) -> tuple[list[torch.Tensor], list[list[BlockInputs]]]:
        """Batches of hidden states before the first block, and how each block is called on them."""
        for windows in input_ids:
            check_ids(self, windows)
        batches = [
            {"input_ids": ids}
            for windows in input_ids
            for ids in torch.split(
                windows.to(self.device), max(1, TOKENS_PER_BATCH // windows.shape[1])
            )
        ]
        return embed(self.skeleton, self.load, batches)

    def walk(
        self, *input_ids: torch.Tensor, report: Report = silent
    ) -> Iterator[list[torch.Tensor]]:
        """After each block in turn, the batches of its output; one block's weights in memory.

        Each of `input_ids` (windows, length) is batched by itself. It is the list that goes on to
        the next block: what is put into it is computed with.
        """
        batches, calls = self.enter(*input_ids)
        count = len(self.skeleton.blocks)
        for index in range(count):
            block = self.load_block(index)
            with torch.no_grad():
                for i, hidden in enumerate(batches):
                    batches[i] = calls[i][index].run(block, hidden)
            drop(block)
            report(Progress("forward", index + 1, count, self.skeleton.block_name(index)))
            yield batches

    def hidden_states(self, input_ids: torch.Tensor, report: Report = silent) -> torch.Tensor:
        """The last block's output (windows, length, width), each block's weights read once."""
        batches: list[torch.Tensor] = []
        for batches in self.walk(input_ids, report=report):  # noqa: B007 - the last are wanted
            pass
        return torch.cat(batches)

    def head(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """Rows of the last block's output (rows, width) -> fp32 logits (rows, vocabulary).

        The product with the head is in fp32 whatever the model's dtype: logits rounded to bf16
        move a KL by 2e-5 nats.
        """
        module = self.skeleton.model.get_submodule(self.skeleton.head)
        self.load(self.skeleton.head, module)
        if isinstance(module, nn.Linear) and self.dtype is not torch.float32:
            module.forward = functools.partial(_wide_product, module)  # type: ignore[method-assign]  # of this one head

        def logits(rows: torch.Tensor) -> torch.Tensor:
            out = leave(self.skeleton, self.load, rows[:, None], head=module)
            return out.squeeze(1).float()

        return logits


def check_ids(model: OpenModel, input_ids: torch.Tensor) -> None:
    """Nothing, when the model has an embedding for every token.

    Raises:
        InputError: tokens were added to the tokenizer and not to the model.
    """
    known = model.skeleton.model.get_input_embeddings().weight.shape[0]
    highest = int(input_ids.max())
    if highest >= known:
        raise InputError(
            f"the tokenizer of `{model.checkpoint.folder}` makes token {highest:,}",
            why=f"the model has embeddings for {known:,} tokens",
            hint="the tokenizer that belongs to this model",
        )


def _wide_product(head: nn.Linear, rows: torch.Tensor) -> torch.Tensor:
    """`head(rows)` in fp32, with a slice of the head's weights widened at a time."""
    wide = rows.float()
    parts = [wide @ part.float().T for part in torch.split(head.weight, HEAD_ROWS)]
    logits = torch.cat(parts, dim=-1)
    bias: torch.Tensor | None = head.bias
    return logits if bias is None else logits + bias.float()


def drop(block: nn.Module) -> None:
    """Let go of a loaded block's weights and hooks."""
    release(block)
    for module in block.modules():
        module._forward_pre_hooks.clear()  # noqa: SLF001 - torch has no public way to list them


def open_model(
    folder: Path,
    *,
    skeleton: Skeleton | None = None,
    trust_remote_code: bool = False,
    device: str = "cpu",
) -> OpenModel:
    """A plain model folder, or an artifact of a known format, ready to run block by block.

    A `skeleton` that is at hand already is not built again.

    Raises:
        InputError: it is no model folder, or tensors are missing or of another shape.
        RefusedError: its architecture, format or way of storing tensors is not known.
    """
    checkpoint = open_checkpoint(folder)
    if skeleton is None:
        config = read_config(folder, trust_remote_code=trust_remote_code)
        skeleton = build_skeleton(config, trust_remote_code=trust_remote_code)
    source = _dtype(skeleton, checkpoint)
    compute = torch.float32 if source is torch.float16 and device == "cpu" else source
    found = _format(checkpoint)
    model = OpenModel(skeleton, checkpoint, found, source, compute, torch.device(device))
    check_complete(model)
    return model


def _dtype(skeleton: Skeleton, checkpoint: Checkpoint) -> torch.dtype:
    """The dtype of the input embedding, which no format quantizes.

    Raises:
        InputError: it is not there.
        RefusedError: it is there in another guise, or in a dtype that is not computed in.
    """
    embedding = skeleton.model.get_input_embeddings()
    name = next(n for n, m in skeleton.model.named_modules() if m is embedding)
    source = source_name(skeleton.model, f"{name}.weight", checkpoint.names)
    senses = [key.removesuffix("_config") for key in SENSES if key in checkpoint.config]
    if source is None and senses:
        raise RefusedError(
            f"`{checkpoint.folder}` is a model of {' and '.join(senses)} beside text",
            why=f"its text model is stored under other names than `{name}.weight`; "
            "quantkit reads and writes tensors one by one, as they are stored",
            hint="a text model of that family; such checkpoints cannot be quantized yet",
        )
    if source is None:
        raise InputError(
            f"`{name}.weight` is not in `{checkpoint.folder}`",
            hint="a folder whose safetensors files hold the whole model",
        )
    dtype = TORCH_DTYPES[checkpoint.names[source].dtype]
    if dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise RefusedError(
            f"`{source}` is {checkpoint.names[source].dtype}",
            why="quantkit reads models in fp32, fp16 and bf16",
            hint="the model in bf16",
        )
    return dtype


def _format(checkpoint: Checkpoint) -> Format | None:
    stated = checkpoint.config.get("quantization_config")
    if stated is None:
        return None
    if not isinstance(stated, dict):
        raise InputError(
            f"`quantization_config` of `{checkpoint.folder}` is no JSON object",
            hint="the config.json that belongs to these weights",
        )
    for name in registry.names("formats"):
        found: Format = registry.load("formats", name, "FORMAT")
        if found.matches(stated):
            return found
    raise RefusedError(
        f"`{checkpoint.folder}` is quantized in a format quantkit does not read",
        why=f"quantization_config says {stated.get('quant_method', 'nothing')!r}",
        hint=f"one of {', '.join(registry.names('formats'))}, or the original model",
    )


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
    """The longest sequence that the model was made for, in tokens."""
    config = model.config.get_text_config()
    return int(getattr(config, "max_position_embeddings", None) or 1 << 30)
