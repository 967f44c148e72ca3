"""Codes in the order of another format."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from quantkit.grid.packing import AWQ_ORDER, pack, unpack, unpack_awq
from tests.checks.conftest import Folder, codes

Copied = Callable[..., Folder]
Q = "model.layers.1.self_attn.q_proj"
Sources = Callable[[str], Path]


def awq_order_in_gptq(words: torch.Tensor) -> torch.Tensor:
    """qweight of GPTQ whose eight codes a word are in AWQ's order."""
    codes = unpack(words.T, 4, 8 * len(words))
    eights = codes.view(len(codes), -1, 8)[:, :, list(AWQ_ORDER)]
    return pack(eights.reshape(codes.shape), 4).T


def gptq_order_in_awq(words: torch.Tensor) -> torch.Tensor:
    """qweight or qzeros of AWQ whose eight codes a word are in their natural order."""
    codes = unpack_awq(words)
    natural = codes.view(-1, 8, codes.shape[1]).int()
    packed = sum(natural[:, i] << (4 * i) for i in range(8))
    assert isinstance(packed, torch.Tensor)
    return packed.T.int()


def test_awq_s_order_in_gptq_by_our_hashes(copied: Copied) -> None:
    folder = copied("gptq")
    folder.change(f"{Q}.qweight", awq_order_in_gptq)
    assert codes(folder) == [("packing-order", Q)]


def test_awq_s_order_in_gptq_by_the_source(copied: Copied, sources: Sources) -> None:
    folder = copied("gptq").foreign()
    folder.change(f"{Q}.qweight", awq_order_in_gptq)
    assert codes(folder, source=str(sources("llama"))) == [("packing-order", Q)]


@pytest.mark.parametrize("own", [True, False])
def test_gptq_s_order_in_awq(copied: Copied, sources: Sources, own: bool) -> None:
    folder = copied("awq") if own else copied("awq").foreign()
    folder.change(f"{Q}.qweight", gptq_order_in_awq)
    folder.change(f"{Q}.qzeros", gptq_order_in_awq)
    assert codes(folder, source=str(sources("llama"))) == [("packing-order", Q)]
