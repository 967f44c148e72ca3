"""Which quantized checkpoints can be read, for whoever opens or plans one: headers and config."""

from collections.abc import Collection, Mapping
from typing import Any

from quantkit.checkpoint.coded import Coding
from quantkit.checkpoint.quantization import BLOCKS, quantization_block
from quantkit.checkpoint.stored import TensorInfo
from quantkit.core import registry
from quantkit.core.errors import InputError, QuantkitError, RefusedError
from quantkit.core.facts import LinearFacts
from quantkit.core.format import Format
from quantkit.model.float_codes import float_codes

FLOATS = {"BF16", "F16", "F32"}
DONE = ("compressed", "frozen")
"""States of a block whose codes are in the files; the second is llm-compressor's of 2024."""


def quantized_form(
    names: Mapping[str, TensorInfo], config: Mapping[str, Any], where: object
) -> Coding | Format | None:
    """Weights in 8- and 4-bit floats, or one of the formats here; None for a plain model.

    `where`: the folder or id, for people.

    Raises:
        InputError: the config's block is no object, or tensors contradict each other.
        RefusedError: a form that is not supported.
    """
    top = config.get("quantization_config")
    if top is not None and not isinstance(top, Mapping):
        raise InputError(
            f"`quantization_config` of `{where}` is not a JSON object",
            hint="use the config.json that belongs to these weights",
        )
    stated = quantization_block(config)
    if stated is not None:
        _require_told(stated, where)
    coding = float_codes(names, config)
    if stated is None:
        return coding
    own = any(stated is config.get(key) for key in BLOCKS)  # else other names than the files'
    if coding is not None:
        return (_holding(coding, names, stated) if own else None) or coding
    if not own:
        raise RefusedError(
            f"the quantization that `text_config` of `{where}` states is not supported",
            why="it names linears otherwise than the files do; 8- and 4-bit floats need no names",
            hint="use the original model",
        )
    if found := _matching(stated):
        return found
    raise RefusedError(
        f"`{where}` is quantized in a format that is not supported",
        why=f"quant_method in its quantization_config is {stated.get('quant_method', 'unset')!r}",
        hint=f"use one of {', '.join(registry.names('formats'))}, or the original model",
    )


def coded_weights(
    names: Mapping[str, TensorInfo], config: Mapping[str, Any], where: object
) -> Collection[str]:
    """The stored tensors that weights in 8- and 4-bit floats are made of; raises as the above."""
    form = quantized_form(names, config, where)
    return form.parts if isinstance(form, Coding) else ()


def _require_told(stated: Mapping[str, Any], where: object) -> None:
    """Check that a block says nothing of what its linears do beside their codes.

    Raises:
        RefusedError: weights are rotated or sparse, outputs are rounded, or the codes are not
            written yet; all of these are fields of compressed-tensors.
    """
    sparse = stated.get("sparsity_config")
    is_dense = not sparse or (isinstance(sparse, Mapping) and sparse.get("format") == "dense")
    groups = stated.get("config_groups")
    each = groups.values() if isinstance(groups, Mapping) else ()
    rounded = any(isinstance(group, Mapping) and group.get("output_activations") for group in each)
    status = stated.get("quantization_status") or DONE[0]
    fields = {
        "transform_config": bool(stated.get("transform_config")),
        "sparsity_config": not is_dense,
        "output_activations": rounded,
        "quantization_status": status not in DONE,
    }
    for field in (field for field, says in fields.items() if says):
        raise RefusedError(
            f"the quantization config of `{where}` has a `{field}` that is not supported",
            why="its weights would be read as if it said nothing",
            hint="use the original model",
        )


def stated_form(
    names: Mapping[str, TensorInfo], config: Mapping[str, Any], where: object
) -> Coding | Format | None:
    """As `quantized_form`; where the tensors fit no float codes, the format that the config states.

    So whoever names faults can name the tensors that the format lacks, and those it does not know.

    Raises:
        InputError, RefusedError: as `quantized_form`, where no format here reads what is stated.
    """
    try:
        return quantized_form(names, config, where)
    except QuantkitError:
        stated = config.get("quantization_config")
        if not isinstance(stated, Mapping):
            raise
        _require_told(stated, where)
        output = _matching(stated)
        if output is None or not _reads(output, stated, names):
            raise
        return output


def _reads(output: Format, stated: Mapping[str, Any], names: Mapping[str, TensorInfo]) -> bool:
    """Whether a format reads every linear as a config states it."""
    try:
        scheme = output.parse(stated)
        found = [scheme(name.rpartition(".")[0]) for name in names]
    except QuantkitError:
        return False
    return any(each is not None for each in found)


def _matching(stated: Mapping[str, Any]) -> Format | None:
    """The format that a quantization block belongs to."""
    formats = (registry.load("formats", name, "FORMAT") for name in registry.names("formats"))
    return next((each for each in formats if each.matches(stated)), None)


def _holding(
    coding: Coding, names: Mapping[str, TensorInfo], stated: Mapping[str, Any]
) -> Format | None:
    """The format that holds all float codes as linears; None where they are only decoded."""
    output = _matching(stated)
    if output is None:
        return None
    try:
        scheme = output.parse(stated)
        for weight, coded in coding.tensors.items():
            linear, found = weight.removesuffix(".weight"), scheme(weight.removesuffix(".weight"))
            if found is None or len(coded.shape) != 2:
                return None
            expected = output.layout(found, LinearFacts(linear, *coded.shape), "bfloat16")
            stored = {suffix: names.get(f"{linear}.{suffix}") for suffix in expected}
            if not all(_is_as(stored[suffix], *expected[suffix]) for suffix in expected):
                return None
    except QuantkitError:
        return None
    return output


def _is_as(info: TensorInfo | None, dtype: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor is what a format expects; floats may be of other widths."""
    if info is None or info.shape != shape:
        return False
    return info.dtype == dtype or {info.dtype, dtype} <= FLOATS
