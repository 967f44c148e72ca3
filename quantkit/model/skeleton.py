"""A model without weights: its modules on the meta device, its block list, its tensor names."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from quantkit.core.errors import InputError, RefusedError
from quantkit.core.facts import LinearFacts
from quantkit.core.session import Session
from quantkit.model.expert_forms import adopt_experts
from quantkit.model.experts import split_experts
from quantkit.model.weight_map import Rules, rules_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel


CALLERS = {"return_dict": True, "output_hidden_states": False, "output_attentions": False}
"""Switches of what a forward returns."""
MOST_COMPUTED = 2**28
"""Bytes of the buffers that no checkpoint contains: rotary frequencies, and masks of old models."""


@dataclass(frozen=True)
class Skeleton:
    """A transformers model whose parameters are all on the meta device.

    `prefix` is the module path of the decoder blocks, e.g. `model.layers`; `head` that of the
    output head; `rules` say how a checkpoint's tensors become the model's. Experts are split into
    linears. Buffers that no checkpoint contains (rotary frequencies) are real.
    """

    model: "PreTrainedModel"
    prefix: str
    head: str
    rules: Rules

    @property
    def blocks(self) -> list[nn.Module]:
        """The decoder blocks in order."""
        return list(self.model.get_submodule(self.prefix).children())

    def is_wide(self, name: str, dtype: torch.dtype) -> bool:
        """Whether transformers keeps tensor `name` in fp32 in a model that is loaded in `dtype`."""
        kept = self.model._get_dtype_plan(dtype)  # noqa: SLF001 - the flags have no public name
        return any(re.search(pattern.replace("*", ".*"), name) for pattern in kept)

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
    for part in (config, config.get_text_config(decoder=True)):
        for switch, value in CALLERS.items():  # a config may state them, the caller decides
            setattr(part, switch, value)
    config._attn_implementation = "sdpa"  # noqa: SLF001 - transformers' own switch has no public name
    return config


def build_skeleton(config: Any, session: Session = Session()) -> Skeleton:
    """Build the model that `config` describes with its weights on the meta device.

    Raises:
        RefusedError: not a causal language model, or without a list of decoder blocks.
    """
    model = build_model(config, session)
    try:
        _fill_buffers(model)
        rules = rules_of(model)
        adopt_experts(model)
        rules = replace(rules, fused=split_experts(model))
    except RefusedError:
        raise
    except Exception as error:  # modeling code can raise anything when a config is wrong
        raise _unbuilt(config, error) from error
    text = config.get_text_config(decoder=True)
    if not isinstance(getattr(text, "hidden_size", None), int):
        raise RefusedError(
            f"`{config.model_type}` does not say how wide its hidden states are",
            why=f"`{type(text).__name__}` has no `hidden_size`",
            hint="use a model of one decoder",
        )
    head = model.get_output_embeddings()
    name = next((n for n, m in model.named_modules() if m is head), "") if head else ""
    return Skeleton(model, block_list(model), name, rules)


def build_model(config: Any, session: Session = Session()) -> "PreTrainedModel":
    """The model that `config` describes as transformers builds it, wholly on the meta device.

    Raises:
        RefusedError: not a causal language model.
    """
    if config.is_encoder_decoder:
        raise RefusedError(
            f"`{config.model_type}` is an encoder-decoder model",
            why="quantkit quantizes the blocks of decoders, which read what came before them",
            hint="use a decoder-only model",
        )
    try:
        with torch.device("meta"):
            try:
                model = _build(config, session)
            except ValueError as error:
                if "attention implementation" not in str(error):
                    raise
                config._attn_implementation = "eager"  # noqa: SLF001 - older families have no other
                model = _build(config, session)
    except RefusedError:
        raise
    except Exception as error:  # modeling code can raise anything when a config is wrong
        raise _unbuilt(config, error) from error
    return model.eval().requires_grad_(requires_grad=False)


def _unbuilt(config: Any, error: Exception) -> RefusedError:
    return RefusedError(
        f"`{config.model_type}` cannot be built as a causal language model from this config.json",
        why=said(error),
        hint="use a decoder model that transformers supports as AutoModelForCausalLM",
    )


def _build(config: Any, session: Session) -> "PreTrainedModel":
    """The model of the class that config.json names, or else the one that generates text.

    A multimodal model is built whole.
    """
    import transformers

    trust, stated = session.trust_remote_code, config.architectures or ()
    autos = (transformers.AutoModelForCausalLM, transformers.AutoModelForImageTextToText)
    known = [auto for auto in autos if type(config) in auto._model_mapping]  # noqa: SLF001 - no public name
    named = [a for a in known if a._model_mapping[type(config)].__name__ in stated]  # noqa: SLF001
    if not known:
        for kind in (getattr(transformers, name, None) for name in stated):
            if kind is not None and kind.can_generate():
                return kind._from_config(config)  # noqa: SLF001
    auto = (*named, *known, autos[0])[0]
    return auto.from_config(config, trust_remote_code=trust)


def said(error: Exception) -> str:
    """The first line of an error's message, or its type where that is empty."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def _fill_buffers(model: "PreTrainedModel") -> None:
    """Compute the buffers that no checkpoint contains, on the CPU.

    A buffer may be filled by a module around its owner, so those are initialized, too, each by the
    model that it belongs to. All others are left out: parameters are on the meta device, where
    filling a thousand of them takes half a second.
    """
    from transformers import PreTrainedModel

    passing = ((n, b) for m in model.modules() for n, b in m.named_buffers(recurse=False))
    if sum(buffer.nbytes for _, buffer in passing if buffer.is_meta) > MOST_COMPUTED:
        raise RefusedError(
            f"config.json describes buffers of more than {MOST_COMPUTED:,} bytes",
            why="they are no weights, and would be computed",
            hint="use the config.json that belongs to these weights",
        )
    filled: list[tuple[nn.Module, str]] = []
    around = {""}
    for path, module in model.named_modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            if name in module._non_persistent_buffers_set and buffer.is_meta:  # noqa: SLF001
                value = float("nan") if buffer.is_floating_point() else 0
                setattr(module, name, torch.full_like(buffer, value, device="cpu"))
                filled.append((module, name))
                words = path.split(".")
                around.update(".".join(words[: count + 1]) for count in range(len(words)))
    if not filled:
        return
    owners: dict[str, PreTrainedModel] = {}
    with torch.no_grad():
        for path, module in model.named_modules():
            parent = owners.get(path.rpartition(".")[0], model)
            owners[path] = module if isinstance(module, PreTrainedModel) else parent
            if path in around:
                owners[path]._init_weights(module)  # noqa: SLF001 - the model's own recipe for them
    for module, name in filled:
        if torch.isnan(getattr(module, name)).any():
            raise RefusedError(f"buffer `{name}` of `{type(module).__name__}` has no value")


def _decoder(model: "PreTrainedModel") -> str:
    """The module path of the text model with its blocks; empty where that is the whole model."""
    from transformers import PreTrainedModel

    text = model.config.get_text_config(decoder=True)
    for name, module in model.named_modules():
        if name and isinstance(module, PreTrainedModel) and module.config is text:
            return f"{name}."
    return ""


ENCODER = re.compile(r"vision|visual|image|audio|speech|encoder")
"""In the paths of the parts of a multimodal model that are no text decoder."""


def block_list(model: "PreTrainedModel") -> str:
    """The path of the longest outermost ModuleList of the text model that contains linears."""
    tower = _decoder(model)
    lists: dict[str, nn.ModuleList] = {}
    for name, module in model.named_modules():
        inside = any(name.startswith(outer + ".") for outer in lists)
        if (
            name.startswith(tower)
            and isinstance(module, nn.ModuleList)
            and not inside
            and any(is_linear(m) for m in module.modules())
        ):
            lists[name] = module
    if not lists:
        raise RefusedError(
            f"`{type(model).__name__}` contains no list of decoder blocks",
            hint="use a model whose blocks are a torch ModuleList",
        )
    decoders = [name for name in lists if not ENCODER.search(name.removeprefix(tower))]
    return max(decoders or lists, key=lambda name: (len(lists[name]), -name.count(".")))


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


def tied_to(model: "PreTrainedModel", name: str) -> str | None:
    """The parameter that holds the values of `name`, if `name` is tied to another."""
    tied: Any = getattr(model, "all_tied_weights_keys", None) or {}
    for target, source in tied.items():
        if re.fullmatch(target, name) or target == name:
            return source if source != name else None
    return None
