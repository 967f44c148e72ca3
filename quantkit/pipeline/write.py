"""From solved blocks to tensors on disk: what replaces what, and in which order."""

import hashlib
import re
from collections.abc import Iterator, Mapping

import torch

from quantkit.checkpoint.shards import TensorSpec
from quantkit.core.format import Format
from quantkit.core.scheme import Scheme
from quantkit.grid.qtensor import DoubleQuant, QTensor
from quantkit.model.open import OpenModel
from quantkit.model.skeleton import linear_facts
from quantkit.pipeline.groups import BlockState, scale_dtype


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
    quantized = sources(model, schemes)
    planned: list[TensorSpec] = []
    like: dict[tuple[tuple[int, ...], Scheme], list[tuple[str, torch.Tensor]]] = {}
    for name in sorted(model.checkpoint.names, key=_natural):
        info = model.checkpoint.names[name]
        linear = quantized.get(name)
        if linear is None:
            planned.append(TensorSpec(name, info.dtype, info.shape))
            continue
        kind = (info.shape, schemes[linear])
        if kind not in like:  # torch is slow without numbers, and most linears are alike
            blank = _blank(model, linear, schemes[linear])
            like[kind] = list(output.encode(blank, model.dtype_name).items())
        planned += [TensorSpec.like(_stem(name) + suffix, tensor) for suffix, tensor in like[kind]]
    return planned


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Sorts `layers.9` before `layers.10`."""
    return [(0, int(p), "") if p.isdigit() else (1, 0, p) for p in re.split(r"(\d+)", name)]


def _stem(weight: str) -> str:
    return weight.removesuffix("weight")


def _blank(model: OpenModel, linear: str, scheme: Scheme) -> QTensor:
    """A QTensor without numbers, on the meta device."""
    facts = linear_facts(linear, model.skeleton.model.get_submodule(linear))
    shape = (facts.out_features, facts.in_features)
    with torch.device("meta"):
        codes = torch.empty(shape, dtype=torch.uint8)
        if scheme.grid == "nf4":
            blocks = -(-codes.numel() // (scheme.group_size or codes.numel()))
            nested = None
            if scheme.double_quant:
                nested = DoubleQuant(
                    torch.empty(blocks, dtype=torch.uint8),
                    torch.empty(-(-blocks // 256)),
                    torch.empty(()),
                )
            return QTensor(codes, torch.empty(blocks), None, scheme, nested)
        groups = (shape[0], scheme.groups(shape[1]))
        zeros = None if scheme.symmetric else torch.empty(groups, dtype=torch.uint8)
        scales = torch.empty(groups, dtype=scale_dtype(scheme, model.source_dtype))
        return QTensor(codes, scales, zeros, scheme)


def encoded(state: BlockState, output: Format) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that a finished block adds to the artifact: encoded linears, rescaled norms."""
    for linear, solved in state.solved.items():
        weight = state.model.source_name(f"{linear}.weight")
        assert weight is not None, linear
        for suffix, tensor in output.encode(solved.qtensor, state.model.dtype_name).items():
            yield _stem(weight) + suffix, tensor
    quantized = {state.model.source_name(f"{linear}.weight") for linear in state.solved}
    for name, tensor in state.changed.items():
        if name not in quantized:
            yield name, tensor


def weight_hash(qtensor: QTensor) -> str:
    """sha256 of the fp32 dequantized weight: what is scored must be what is shipped."""
    weight = qtensor.dequantize().contiguous().cpu()
    return hashlib.sha256(weight.numpy().data).hexdigest()
