"""Codes are packed in another order than the format's: AWQ's in GPTQ's words, or the other way."""

from collections.abc import Iterator
from dataclasses import replace

import torch

from quantkit.core.check import Check, Fault
from quantkit.grid.packing import AWQ_ORDER
from quantkit.grid.qtensor import QTensor
from quantkit.model.stored_weights import StoredWeight

ALONG_OUTPUTS = ("awq",)
"""Formats that pack along the outputs; all others pack along the inputs."""


def find(weight: StoredWeight) -> Iterator[Fault]:
    """The weight, where the same codes in another order are the right ones."""
    qtensor = weight.qtensor
    if qtensor is None or qtensor.scheme.bits != 4 or not weight.is_wrong:
        return
    reference = weight.reference
    assert reference is not None
    for candidate in _reordered(qtensor, outputs=weight.format in ALONG_OUTPUTS):
        if reference(candidate):
            yield Fault(
                weight.name,
                f"the codes of `{weight.name}` are packed in another order than format "
                f"{weight.format} has: eight codes of a word are permuted",
            )
            return


def _reordered(qtensor: QTensor, *, outputs: bool) -> Iterator[QTensor]:
    """The weight with the codes of each word permuted, either way; its zero points, too, or not."""
    order = torch.tensor(AWQ_ORDER)
    for permutation in (order, order.argsort()):
        codes = _permuted(qtensor.codes, permutation, outputs=outputs)
        yield replace(qtensor, codes=codes)
        if qtensor.zeros is not None:
            zeros = _permuted(qtensor.zeros, permutation, outputs=True)
            yield replace(qtensor, codes=codes, zeros=zeros)


def _permuted(codes: torch.Tensor, order: torch.Tensor, *, outputs: bool) -> torch.Tensor:
    rows, columns = codes.shape
    if outputs:
        return codes.view(-1, 8, columns)[:, order].reshape(rows, columns)
    return codes.view(rows, -1, 8)[:, :, order].reshape(rows, columns)


CHECK = Check(
    "weights",
    "codes are packed in another order than the format has",
    "pack the codes again in the order of the format",
    find,
    3,
)
