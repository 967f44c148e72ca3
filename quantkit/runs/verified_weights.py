"""The tensors of a folder as subjects of checks: which there are, and how each is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch

from quantkit.checkpoint.checkpoint import Checkpoint
from quantkit.checkpoint.coded import Coded
from quantkit.checkpoint.lent import Loan, Memory
from quantkit.checkpoint.quantization import quantization_block
from quantkit.checkpoint.threads import in_order
from quantkit.core.facts import LinearFacts
from quantkit.grid.qtensor import QTensor
from quantkit.model.declared import Declared, DeclaredLinear
from quantkit.model.stored_weights import DenseTensor, Original, StoredWeight

AHEAD = 128 * 2**20
"""Bytes of the largest weights of which one is read while another is checked."""
NUMBERS = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")


@dataclass(frozen=True)
class Unread:
    """A quantized weight, its stored bytes, and how it is read by a folder that lends memory."""

    name: str
    nbytes: int
    read: Callable[[Checkpoint], StoredWeight]


def read_in_turn(
    weights: Iterable[Unread], checkpoint: Checkpoint, skipped: Callable[[str], bool]
) -> Iterator[tuple[Unread, StoredWeight | None]]:
    """Each weight, the next one being read meanwhile; None for those that are `skipped`.

    Their memory is overwritten after they were looked at.
    """
    memory = Memory()

    def read(each: Unread) -> tuple[Unread, StoredWeight | None, Loan]:
        loan = Loan(memory)
        weight = None if skipped(each.name) else each.read(checkpoint.lending(loan))
        return each, weight, loan

    for each, weight, loan in in_order(read, weights, 2, lambda each: each.nbytes, 2 * AHEAD):
        yield each, weight
        del weight
        loan.end()


def dense_tensors(declared: Declared, beside: Original | None) -> Iterator[DenseTensor]:
    """Each stored tensor of the model that is not part of a quantized weight, once."""
    coded = declared.coding.tensors if declared.coding else {}
    seen = set()
    for path, (place, _) in declared.dense.items():
        for name in place.names if place else ():
            if name in seen or name in coded:
                continue
            seen.add(name)
            original = partial(beside.dense_original, name) if beside else None
            undone = partial(beside.undone, path) if beside else None
            info = declared.files[name]
            yield DenseTensor(name, info, declared.checkpoint, "weight", original, undone)


def raw_tensors(checkpoint: Checkpoint) -> Iterator[DenseTensor]:
    """Each tensor of a folder whose model is not known."""
    for name, info in checkpoint.names.items():
        if info.dtype in NUMBERS:
            kind: Literal["weight", "other"] = "weight" if name.endswith(".weight") else "other"
            yield DenseTensor(name, info, checkpoint, kind)


def stored_weights(
    declared: Declared, beside: Original | None, proven: Callable[[str], bool]
) -> Iterator[Unread]:
    """Each quantized weight in the order of the model.

    `proven`: whether a file has its own hash still, so that those of its weights need no proof.
    """
    if declared.coding is not None:
        for name, coded in declared.coding.tensors.items():
            stored = name.removesuffix(".weight")
            size = sum(declared.files[part].nbytes for part in coded.parts.values())
            yield Unread(stored, size, partial(_coded, declared, name, coded, beside))
        return
    digests = {str(m.get("name")): str(m.get("codes_sha256")) for m in _modules(declared)}
    for linear in declared.linears:
        names = {part: name for part, name in linear.parts.items() if name}
        size = sum(declared.files[name].nbytes for name in names.values())

        def read(
            checkpoint: Checkpoint, linear: DeclaredLinear = linear, names: dict[str, str] = names
        ) -> StoredWeight:
            shards = {declared.files[name].shard for name in names.values()}
            proof = {} if all(map(proven, shards)) else digests
            return _linear(declared, checkpoint, linear, names, proof, beside)

        yield Unread(linear.stored, size, read)


def _modules(declared: Declared) -> list[Mapping[str, object]]:
    found = declared.manifest.get("modules")
    return [each for each in found or [] if "codes_sha256" in each]


def _coded(
    declared: Declared, name: str, coded: Coded, beside: Original | None, checkpoint: Checkpoint
) -> StoredWeight:
    raw = {part: checkpoint.as_stored(stored) for part, stored in coded.parts.items()}

    def decode(_: int | None) -> torch.Tensor:
        if len(coded.shape) > 2:
            return declared.checkpoint.tensor(name)
        return checkpoint.decode(name, raw)

    stored = name.removesuffix(".weight")
    paths = (path for path, there in declared.model.weights.modules.items() if there == stored)
    path = next(paths, stored)
    compared = beside.comparison(path) if beside else None
    return StoredWeight(stored, raw, coded.parts, None, None, None, decode, beside=compared)


def _linear(
    declared: Declared,
    checkpoint: Checkpoint,
    linear: DeclaredLinear,
    names: Mapping[str, str],
    digests: Mapping[str, str],
    beside: Original | None,
) -> StoredWeight:
    tensors = {part: checkpoint.tensor(name) for part, name in names.items()}
    output = declared.format
    assert output is not None

    def decode(outputs: int | None) -> QTensor:
        if outputs is None:
            return output.decode(tensors, linear.scheme, linear.facts)
        facts = replace(linear.facts, out_features=outputs)
        layout = output.layout(linear.scheme, facts, declared.model.dtype_name)
        few = {
            part: _cut(tensor, layout[part][1], linear.facts, facts)
            for part, tensor in tensors.items()
        }
        return output.decode(few, linear.scheme, facts)

    return StoredWeight(
        linear.stored,
        tensors,
        names,
        linear.scheme,
        linear.facts,
        output.name,
        decode,
        digests.get(linear.path) or digests.get(linear.stored),
        {digest: name for name, digest in digests.items()},
        beside.comparison(linear.path) if beside else None,
        bool((quantization_block(declared.checkpoint.config) or {}).get("desc_act")),
    )


def _cut(
    tensor: torch.Tensor, shape: tuple[int, ...], whole: LinearFacts, few: LinearFacts
) -> torch.Tensor:
    """A part of a linear as it is with fewer outputs; a stored shape is that of these."""
    sizes = [[each.out_features, each.in_features] for each in (whole, few)]
    if tensor.shape == (2,) and tensor.tolist() == sizes[0]:
        return torch.tensor(sizes[1], dtype=tensor.dtype)
    return tensor[tuple(slice(size) for size in shape)]
