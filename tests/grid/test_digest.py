import hashlib
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from quantkit.core.scheme import Scheme
from quantkit.grid.digest import codes_sha256
from quantkit.grid.qtensor import QTensor

SCHEMES = [
    Scheme("int", 4, 32),
    Scheme("int", 3, None, symmetric=False),
    Scheme("int", 8, None, activation="int8-token"),
    Scheme("nf4", 4, 64),
    Scheme("nf4", 4, 64, double_quant=True),
    Scheme("fp8", 8, None),
    Scheme("nvfp4", 4, 16),
]


def test_it_is_what_the_manifest_s_reader_can_compute_anew() -> None:
    codes = torch.tensor([[1, 2], [3, 4]], dtype=torch.uint8)
    scales = torch.tensor([[0.5], [1.0]], dtype=torch.bfloat16)
    stated = (
        b"int\ncodes uint8 [2, 2]\n\x01\x02\x03\x04"
        b"scales float32 [2, 1]\n\x00\x00\x00\x3f\x00\x00\x80\x3f"
        b"zeros uint8 [2, 1]\n\x08\x08"
    )
    found = codes_sha256(QTensor(codes, scales, None, Scheme("int", 4, None)))
    assert found == hashlib.sha256(stated).hexdigest()


@pytest.mark.parametrize(
    ("scheme", "scales", "stated"),
    [
        (Scheme("nf4", 4, 2), torch.ones(2), b"nf4 in blocks of 2"),
        (Scheme("nf4", 4, None), torch.ones(1), b"nf4 in blocks of 4"),
        (Scheme("fp8", 8, 128, rows=128), torch.ones(1, 1), b"fp8 128x128"),
        (Scheme("mxfp4", 4, 32), torch.ones(2, 1), b"mxfp4 g32"),
    ],
    ids=str,
)
def test_grids_without_zero_points_state_their_groups(
    scheme: Scheme, scales: torch.Tensor, stated: bytes
) -> None:
    codes = torch.tensor([[1, 2], [3, 4]], dtype=torch.uint8)
    known = b"\ncodes uint8 [2, 2]\n\x01\x02\x03\x04scales float32 %a\n" % list(scales.shape)
    expected = hashlib.sha256(stated + known + b"\x00\x00\x80\x3f" * scales.numel())
    assert codes_sha256(QTensor(codes, scales, None, scheme)) == expected.hexdigest()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_number_counts(scheme: Scheme, random_qtensor: Callable[..., QTensor]) -> None:
    q = random_qtensor(scheme, 4, 128)
    changed = [q, random_qtensor(scheme, 4, 128, seed=1)]
    for part in ("codes", "scales", "zeros"):
        tensor = getattr(q, part)
        for index in (0, -1) if tensor is not None else ():
            other = tensor.clone()
            raw = other.view(torch.uint8) if other.itemsize == 1 else other
            raw.view(-1)[index] += 1
            changed.append(replace(q, **{part: other}))
    if scheme.grid == "nf4":
        changed.append(replace(q, scheme=replace(scheme, group_size=128)))
    assert len({codes_sha256(each) for each in changed}) == len(changed)


def test_stated_zero_points_are_the_implied_ones(random_qtensor: Callable[..., QTensor]) -> None:
    q = random_qtensor(Scheme("int", 4, 32), 4, 128)
    asymmetric = replace(q.scheme, symmetric=False)
    stated = replace(q, scheme=asymmetric, zeros=torch.full(q.scales.shape, 8, dtype=torch.uint8))
    assert torch.equal(stated.dequantize(), q.dequantize())
    assert codes_sha256(stated) == codes_sha256(q)


def test_strides_do_not_count(random_qtensor: Callable[..., QTensor]) -> None:
    q = random_qtensor(Scheme("int", 4, 32), 4, 128)
    turned = replace(q, codes=q.codes.T.contiguous().T, scales=q.scales.T.contiguous().T)
    assert not turned.codes.is_contiguous()
    assert codes_sha256(turned) == codes_sha256(q)
