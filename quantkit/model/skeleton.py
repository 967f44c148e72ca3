"""A model without weights: its modules on the meta device, its block list, its tensor names."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from quantkit.core.errors import InputError, RefusedError
from quantkit.core.facts import LinearFacts
from quantkit.core.session import Session

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Skeleton:
    """A transformers model whose parameters are all on the meta device.

    `prefix` is the module path of the decoder blocks, e.g. `model.layers`; `head` that of the
    output head. Buffers that no checkpoint contains (rotary frequencies) are real.
    """

    model: "PreTrainedModel"
    prefix: str
    head: str

    @property
    def blocks(self) -> list[nn.Module]:
        """The decoder blocks in order."""
        return list(self.model.get_submodule(self.prefix).children())

    def block_name(self, index: int) -> str:
        """Module path of block `index`."""
        return f"{self.prefix}.{index}"


def read_config(folder: Path, session: Session = Session()) -> Any:
    """The transformers config of `folder` with SDPA attention; custom code runs only with trust.

    Raises:
        InputError: transformers does not support config.json.
        RefusedError: the model requires custom code that the session does not trust.
    """
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(
            folder, trust_remote_code=session.trust_remote_code, local_files_only=True
        )
    except Exception as error:  # configs validate themselves with errors of their own
        if "trust_remote_code" in str(error):
            raise RefusedError(
                f"`{folder}` requires custom code to load",
                why=said(error),
                hint="review that code, then add --trust-remote-code",
            ) from error
        raise InputError(
            f"config.json of `{folder}` does not describe a model that transformers supports",
            why=said(error),
            hint="use a decoder model whose config.json contains `model_type`",
        ) from error
    config.quantization_config = None
    del config.quantization_config
    config._attn_implementation = "sdpa"  # noqa: SLF001 - transformers' own switch has no public name
    return config


def build_skeleton(config: Any, session: Session = Session()) -> Skeleton:
    """Build the model that `config` describes with its weights on the meta device.

    Raises:
        RefusedError: not a causal language model, or without a list of decoder blocks.
    """
    from transformers import AutoModelForCausalLM

    def build() -> "PreTrainedModel":
        with torch.device("meta"):
            trust = session.trust_remote_code
            return AutoModelForCausalLM.from_config(config, trust_remote_code=trust)

    try:
        try:
            model = build()
        except ValueError as error:
            if "attention implementation" not in str(error):
                raise
            config._attn_implementation = "eager"  # noqa: SLF001 - older families have no other
            model = build()
        model.eval().requires_grad_(requires_grad=False)
        _fill_buffers(model)
    except Exception as error:  # modeling code can raise anything when a config is wrong
        raise RefusedError(
            f"`{config.model_type}` cannot be built as a causal language model",
            why=said(error),
            hint="use a decoder model that transformers supports as AutoModelForCausalLM",
        ) from error
    head = model.get_output_embeddings()
    name = next((n for n, m in model.named_modules() if m is head), "") if head else ""
    return Skeleton(model, _block_list(model), name)


def said(error: Exception) -> str:
    """The first line of an error's message, or its type where that is empty."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def _fill_buffers(model: "PreTrainedModel") -> None:
    """Compute the buffers that no checkpoint contains, on the CPU."""
    for module in model.modules():
        names = [
            name
            for name, buffer in module.named_buffers(recurse=False)
            if name in module._non_persistent_buffers_set and buffer.is_meta  # noqa: SLF001
        ]
        for name in names:
            setattr(module, name, torch.empty_like(getattr(module, name), device="cpu"))
        if names:
            with torch.no_grad():
                model._init_weights(module)  # noqa: SLF001 - the model's own recipe for them


def _block_list(model: nn.Module) -> str:
    """The path of the longest ModuleList whose modules have one type and contain linears."""
    lists: dict[str, nn.ModuleList] = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList)
        and len({type(child) for child in module}) == 1
        and any(is_linear(m) for m in module.modules())
    }
    if not lists:
        raise RefusedError(
            f"`{type(model).__name__}` contains no list of decoder blocks",
            hint="use a model whose blocks are a torch ModuleList",
        )
    return max(lists, key=lambda name: (len(lists[name]), -name.count(".")))


def persistent_buffers(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """The named buffers of `module` itself that a checkpoint contains, of any shape and dtype."""
    passing = module._non_persistent_buffers_set  # noqa: SLF001 - torch has no public name for it
    return [(n, buffer) for n, buffer in module.named_buffers(recurse=False) if n not in passing]


def is_linear(module: nn.Module) -> bool:
    """Whether `module` is a linear layer: torch's own, or GPT-2's transposed Conv1D."""
    return isinstance(module, nn.Linear) or is_transposed(module)


def is_transposed(module: nn.Module) -> bool:
    """Whether `module` keeps its weight as (in_features, out_features)."""
    weight = getattr(module, "weight", None)
    return type(module).__name__ == "Conv1D" and weight is not None and weight.ndim == 2


def linear_facts(name: str, module: nn.Module, fused: tuple[str, ...] = ()) -> LinearFacts:
    """Shape and kind of a linear; its weight may be on the meta device."""
    shape = tuple(module.weight.shape)  # type: ignore[arg-type]  # a Parameter
    transposed = is_transposed(module)
    out_features, in_features = reversed(shape) if transposed else shape
    return LinearFacts(name, out_features, in_features, transposed, fused)


def source_name(model: "PreTrainedModel", name: str, present: Collection[str]) -> str | None:
    """The checkpoint's name of parameter `name`, or None where it contains no such tensor.

    Old checkpoints leave out the base model's prefix (GPT-2's `transformer.`), or carry one that
    the module tree does not have.
    """
    base = model.base_model_prefix + "."
    for candidate in (name, name.removeprefix(base), base + name):
        if candidate in present:
            return candidate
    return _tied(model, name, present)


def _tied(model: "PreTrainedModel", name: str, present: Collection[str]) -> str | None:
    """The name under which a tied parameter is stored, if `name` is one."""
    tied: Any = getattr(model, "all_tied_weights_keys", None) or {}
    for target, source in tied.items():
        if re.fullmatch(target, name) or target == name:
            return source_name(model, source, present) if source != name else None
    return None
