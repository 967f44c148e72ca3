"""compressed-tensors' layouts (llm-compressor, vLLM): integers and floats, one group a scheme."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quantkit.core.errors import InputError, RefusedError
from quantkit.core.facts import Layout, LinearFacts, ModelFacts
from quantkit.core.format import BLOCK, Format, parser
from quantkit.core.patterns import Patterns
from quantkit.core.scheme import KVCache, Scheme
from quantkit.formats import _ct_floats, _ct_integers

if TYPE_CHECKING:
    import torch

    from quantkit.grid.qtensor import QTensor

NAME = "compressed-tensors"
PARTS: Mapping[str, Any] = {
    "int": _ct_integers,
    **dict.fromkeys(("fp8", "mxfp8", "mxfp4", "nvfp4"), _ct_floats),
}
"""Grid -> the file that knows its tensors and arguments."""
KV_CACHES: Mapping[KVCache, Mapping[str, Any]] = {
    "fp8-tensor": {
        "num_bits": 8,
        "type": "float",
        "strategy": "tensor",
        "dynamic": False,
        "symmetric": True,
    },
}
Group = Mapping[str, Any] | None
"""A config group; None is what stays dense."""


def encode(qtensor: QTensor, dtype: str = "float32") -> dict[str, torch.Tensor]:
    """The tensors of one linear, which is not modified."""
    found: dict[str, torch.Tensor] = PARTS[qtensor.scheme.grid].encode(qtensor, dtype)
    return found


def decode(tensors: Mapping[str, torch.Tensor], scheme: Scheme, linear: LinearFacts) -> QTensor:
    """The QTensor of `linear`.

    Raises:
        InputError: a tensor is missing or has another dtype or shape, or a code is no number.
        RefusedError: the columns are in act-order.
    """
    found: QTensor = PARTS[scheme.grid].decode(tensors, scheme, linear)
    return found


def layout(scheme: Scheme, linear: LinearFacts, dtype: str) -> Layout:
    """Dtypes and shapes of the tensors that `encode` returns."""
    found: Layout = PARTS[scheme.grid].layout(scheme, linear, dtype)
    return found


def config(model: ModelFacts) -> dict[str, Any]:
    """The block that transformers, vLLM and SGLang read, with one config group per scheme.

    A single scheme targets the class `Linear`, which in vLLM routers are, too. Several schemes list
    their linears by name: engines merge groups differently if a linear matches two of them.
    """
    schemes = model.by_scheme()
    layouts = {_layout(scheme) for scheme in schemes}
    return {
        "quant_method": NAME,
        "format": _form(layouts),
        "quantization_status": "compressed",
        "config_groups": {
            f"group_{i}": _group(scheme, ["Linear"] if len(schemes) == 1 else names)
            for i, (scheme, names) in enumerate(schemes.items())
        },
        "ignore": list(model.unquantized),
        "kv_cache_scheme": dict(KV_CACHES[model.kv_cache]) if model.kv_cache else None,
        "global_compression_ratio": None,
    }


def _form(layouts: set[str]) -> str:
    """The `format` of a block whose groups have these; without any the weights are dense."""
    if len(layouts) > 1:
        return "mixed-precision"
    return layouts.pop() if layouts else "dense"


def kv_cache_of(config: Mapping[str, Any]) -> KVCache | None:
    """What a block says that keys and values are cached in; None for as they are.

    Raises:
        RefusedError: not in e4m3 with a static scale of all heads.
    """
    stated = config.get("kv_cache_scheme")
    if stated is None:
        return None
    for kv_cache, ours in KV_CACHES.items():
        if isinstance(stated, Mapping) and all(stated.get(key) == ours[key] for key in ours):
            return kv_cache
    raise RefusedError(
        "unsupported `kv_cache_scheme` in the quantization config",
        why=f"it is {stated}; known: {KV_CACHES['fp8-tensor']}",
        hint="use the original model, or remove `kv_cache_scheme` from config.json",
    )


@dataclass(frozen=True)
class _Rules:
    """A block's targets: `named` in full, or as patterns; a group of None is ignored.

    `ignored` are patterns of what stays dense, `covering` those of `groups`, in their order.
    """

    config: Mapping[str, Any]
    named: Mapping[str, Group]
    ignored: Patterns
    covering: Patterns
    groups: tuple[Group, ...]


def _rules(config: Mapping[str, Any]) -> _Rules:
    """The targets of a block, the first group of each.

    Raises:
        InputError: a target is not text, a regular expression is invalid, or there are too many.
    """
    named: dict[str, Group] = {}
    patterns: list[tuple[str, Group]] = []
    groups = ((g["targets"], g) for g in (config.get("config_groups") or {}).values())
    for targets, group in ((config.get("ignore") or (), None), *groups):
        for target in targets:
            if not isinstance(target, str):
                raise InputError(f"`{target}` in the quantization config is not a valid target")
            if target.startswith("re:"):
                patterns.append((target[3:], group))
            else:
                named.setdefault(target, group)
    ignored = Patterns([regex for regex, group in patterns if group is None], BLOCK)
    others = [(regex, group) for regex, group in patterns if group is not None]
    covering = Patterns([regex for regex, _ in others], BLOCK)
    return _Rules(config, named, ignored, covering, tuple(group for _, group in others))


def _scheme_of(rules: _Rules, name: str) -> Scheme | None:
    """The scheme of linear `name`, None if it is dense.

    What is ignored comes first, then full names, regular expressions, and the class `Linear`.

    Raises:
        RefusedError: the scheme is not supported.
        InputError: a regular expression takes too long.
    """
    if rules.ignored.first(name) is not None:
        return None
    covering = None if name in rules.named else rules.covering.first(name)
    found = rules.named.get(name, rules.named.get("Linear"))
    found = found if covering is None else rules.groups[covering]
    return None if found is None else _scheme(found, rules.config)


parse = parser(_rules, _scheme_of)


def check(scheme: Scheme, linear: LinearFacts) -> str | None:
    """Why the layouts cannot hold this linear; None if they can."""
    if scheme.grid not in PARTS:
        return f"format {NAME} stores integers and floats, not {scheme.label()}"
    if linear.transposed:
        return f"format {NAME} cannot store GPT-2's transposed Conv1D weights; try: --format gptq"
    if scheme.rows == 1 and scheme.group_size and linear.in_features % scheme.group_size:
        return f"group size {scheme.group_size} does not divide {linear.in_features} inputs"
    fault: str | None = PARTS[scheme.grid].check(scheme, linear)
    return fault


def _group(scheme: Scheme, targets: list[str]) -> dict[str, Any]:
    weights, activations = PARTS[scheme.grid].arguments(scheme)
    return {
        "targets": targets,
        "format": _layout(scheme),
        "weights": weights,
        "input_activations": activations,
        "output_activations": None,
    }


def _layout(scheme: Scheme) -> str:
    found: str = PARTS[scheme.grid].form(scheme)
    return found


def _scheme(group: Mapping[str, Any], config: Mapping[str, Any]) -> Scheme:
    layout = group.get("format") or config.get("format")
    weights, activations = group.get("weights") or {}, group.get("input_activations")
    part = _ct_floats if weights.get("type", "int") == "float" else _ct_integers
    scheme: Scheme | None = part.scheme_of(layout, weights, activations)
    if scheme is None:
        raise RefusedError(
            f"unsupported scheme in compressed-tensors layout `{layout}`",
            why=f"weights: {weights}; input_activations: {activations}",
            hint="use integers per group or channel, or floats as vLLM's presets have them",
        )
    return scheme


FORMAT = Format(
    name=NAME,
    summary="compressed-tensors: integers of 2 to 8 bits, W8A8, FP8, MXFP8, MXFP4, NVFP4",
    quant_method=NAME,
    encode=encode,
    decode=decode,
    layout=layout,
    config=config,
    parse=parse,
    check=check,
    matches=lambda block: block.get("quant_method") == NAME,
    kv_caches=tuple(KV_CACHES),
    kv_cache_of=kv_cache_of,
)
