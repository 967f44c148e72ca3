"""From solved blocks to tensors on disk: names, replacements and order."""

from collections.abc import Iterator, Mapping

import torch

from quantkit.checkpoint.shards import TensorSpec, artifact_specs, beside
from quantkit.core.facts import Layout
from quantkit.core.format import Format
from quantkit.core.scheme import Scheme
from quantkit.model.opened import OpenModel
from quantkit.model.skeleton import linear_facts
from quantkit.pipeline.groups import BlockState
from quantkit.pipeline.kv_cache import scale_tensors

NONE: Layout = {}


def sources(model: OpenModel, schemes: Mapping[str, Scheme]) -> set[str]:
    """Names of the stored tensors that hold weights of quantized linears."""
    places = model.weights.places
    return {name for linear in schemes for name in places[f"{linear}.weight"].names}


def planned_tensors(
    model: OpenModel, schemes: Mapping[str, Scheme], output: Format, further: Layout = NONE
) -> list[TensorSpec]:
    """Every tensor of the artifact, in an order that does not depend on the source's shards.

    `further`: tensors by name that replace nothing of the source.
    """
    stored = {name: (info.dtype, info.shape) for name, info in model.checkpoint.names.items()}
    stored |= further
    replaced: dict[str, Layout] = {}
    for linear, scheme in schemes.items():
        if model.weights.places[f"{linear}.weight"].is_plain:
            name = model.stored_name(f"{linear}.weight")
            replaced[name] = _layout(model, linear, scheme, output)
    for name in _cut(model, schemes):
        replaced[name] = {}
        for part in model.weights.cut[name]:
            linear, _, key = part.rpartition(".")
            if key == "weight" and linear in schemes:
                replaced[name] |= _layout(model, linear, schemes[linear], output)
            else:
                replaced[name] |= dict([model.stored_spec(part)])
    return artifact_specs(stored, replaced)


def _layout(model: OpenModel, linear: str, scheme: Scheme, output: Format) -> Layout:
    """The tensors of a quantized linear in the artifact."""
    facts = linear_facts(linear, model.skeleton.model.get_submodule(linear))
    layout = output.layout(scheme, facts, model.dtype_name)
    return beside(model.stored_name(f"{linear}.weight"), layout)


def _cut(model: OpenModel, schemes: Mapping[str, Scheme]) -> list[str]:
    """Stored tensors of which a linear is quantized, and that are therefore stored in parts.

    Of experts everything is, biases included, as soon as one of them is quantized.
    """
    places = model.weights.places
    stacks: set[str] = set()
    converted: set[str] = set()
    for linear in schemes:
        place = places[f"{linear}.weight"]
        if place.fused is not None:
            stacks.add(place.fused.experts)
        if not place.is_plain:
            converted |= set(place.names)
    return [
        name
        for name, parts in model.weights.cut.items()
        if name in converted
        or any((fused := places[part].fused) and fused.experts in stacks for part in parts)
    ]


def dense_parts(model: OpenModel, schemes: Mapping[str, Scheme]) -> list[str]:
    """The model's tensors that an artifact stores dense and apart, though they were together."""
    return [
        part
        for name in _cut(model, schemes)
        for part in model.weights.cut[name]
        if not (part.endswith(".weight") and part.removesuffix(".weight") in schemes)
    ]


def encoded(state: BlockState, output: Format) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that a finished block adds to the artifact: encoded linears, rescaled norms.

    Shapes and dtypes of encoded ones are those of the format's layout, of others the source's.
    """
    model = state.model
    quantized = set()
    for linear, solved in state.solved.items():
        weight = model.stored_name(f"{linear}.weight")
        quantized.add(weight)
        for suffix, tensor in output.encode(solved.qtensor, model.dtype_name).items():
            yield weight.removesuffix("weight") + suffix, tensor
    for name, tensor in state.changed.items():
        if name not in quantized:
            yield name, tensor
    stored = {model.weights.holders[path]: scales for path, scales in state.cache.items()}
    yield from scale_tensors(stored)
