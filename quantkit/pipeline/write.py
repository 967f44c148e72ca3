"""From solved blocks to tensors on disk: names, replacements and order."""

import hashlib
from collections.abc import Iterator, Mapping

import torch

from quantkit.checkpoint.shards import TensorSpec, artifact_specs, stem
from quantkit.core.format import Format
from quantkit.core.scheme import Scheme
from quantkit.grid.qtensor import QTensor
from quantkit.model.opened import OpenModel
from quantkit.model.skeleton import linear_facts
from quantkit.pipeline.groups import BlockState


def sources(model: OpenModel, schemes: Mapping[str, Scheme]) -> dict[str, str]:
    """Checkpoint name of the weight of each quantized linear -> its module name."""
    found = {}
    for linear in schemes:
        name = model.source_name(f"{linear}.weight")
        assert name is not None, linear
        found[name] = linear
    return found


def planned_tensors(
    model: OpenModel, schemes: Mapping[str, Scheme], output: Format
) -> list[TensorSpec]:
    """Every tensor of the artifact, in an order that does not depend on the source's shards."""
    quantized = {}
    for name, linear in sources(model, schemes).items():
        facts = linear_facts(linear, model.skeleton.model.get_submodule(linear))
        quantized[name] = output.layout(schemes[linear], facts, model.dtype_name)
    stored = {name: (info.dtype, info.shape) for name, info in model.checkpoint.names.items()}
    return artifact_specs(stored, quantized)


def encoded(state: BlockState, output: Format) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that a finished block adds to the artifact: encoded linears, rescaled norms.

    Shapes and dtypes of encoded ones are those of the format's layout, of others the source's.
    """
    for linear, solved in state.solved.items():
        weight = state.model.source_name(f"{linear}.weight")
        assert weight is not None, linear
        for suffix, tensor in output.encode(solved.qtensor, state.model.dtype_name).items():
            yield stem(weight) + suffix, tensor
    quantized = {state.model.source_name(f"{linear}.weight") for linear in state.solved}
    for name, tensor in state.changed.items():
        if name not in quantized:
            yield name, tensor


def weight_hash(qtensor: QTensor) -> str:
    """SHA-256 of the dequantized fp32 weight; proves that the file has the weight in memory."""
    weight = qtensor.dequantize().contiguous().cpu()
    return hashlib.sha256(weight.numpy().data).hexdigest()
