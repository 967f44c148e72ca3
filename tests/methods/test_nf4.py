import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quantkit.core.scheme import Scheme
from quantkit.grid.dynamic8 import dynamic_book
from quantkit.grid.normal4 import NF4
from quantkit.grid.qtensor import QTensor
from quantkit.methods import nf4
from quantkit.methods.nf4 import Nf4Options
from quantkit.stats.inputs import InputStats
from tests.methods.solving import quantized

GOLDEN = Path(__file__).parents[1] / "golden" / "nf4_bitsandbytes_0_50_2.json"
PLAIN = Nf4Options(search=False)
SIMPLE, DOUBLE = Scheme("nf4", 4, 64), Scheme("nf4", 4, 64, double_quant=True)


def solve(weight: torch.Tensor, scheme: Scheme, options: Nf4Options = PLAIN) -> QTensor:
    return quantized(nf4, [weight], None, scheme, torch.float32, options)[0].qtensor


def golden_weight(rows: int, columns: int, outliers: bool) -> torch.Tensor:
    """bf16 numbers, bell-shaped, that need no random generator; two dead blocks."""
    i = torch.arange(rows * columns)
    parts = [(i * a + i * i * b) % 1009 for a, b in ((7919, 31), (104729, 17), (1299709, 3))]
    weight = (sum(parts) - 1512).float() / 4096  # type: ignore[union-attr]  # tensors, not 0
    if outliers:
        weight[::997] *= 40
    weight[64:192] = 0
    return weight.view(rows, columns).bfloat16().float()


def twin(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The slow reference: the nearest of 16 values, one block at a time; codes and absmax."""
    flat, codes, scales = weight.flatten(), [], []
    for start in range(0, flat.numel(), 64):
        block = flat[start : start + 64]
        absmax = block.abs().max()
        scaled = block / absmax if absmax > 0 else block
        codes.append((scaled[:, None] - NF4).abs().argmin(1))
        scales.append(absmax)
    return torch.cat(codes).view(weight.shape), torch.stack(scales)


@pytest.mark.parametrize("case", json.loads(GOLDEN.read_text())["cases"], ids=lambda c: c["name"])
def test_plain_mode_is_bitsandbytes_bit_for_bit(case: dict[str, Any]) -> None:
    """Made with bitsandbytes 0.50.2 on a CPU: quantize_4bit(bf16 weight, blocksize=64, "nf4")."""
    weight = golden_weight(case["rows"], case["columns"], case["outliers"])
    scheme = DOUBLE if case["double"] else SIMPLE
    qtensor = solve(weight, scheme)
    flat = torch.nn.functional.pad(qtensor.codes.flatten(), (0, weight.numel() % 2), value=7)
    packed = (flat[::2] << 4 | flat[1::2]).numpy().tobytes()
    assert packed.hex() == case["packed"]
    if qtensor.nested is None:
        assert qtensor.scales.numpy().tobytes().hex() == case["absmax"]
        return
    assert qtensor.nested.codes.numpy().tobytes().hex() == case["absmax"]
    assert qtensor.nested.absmax.numpy().tobytes().hex() == case["nested_absmax"]
    assert qtensor.nested.offset.numpy().tobytes().hex() == case["offset"]


@given(
    seed=st.integers(0, 10**6),
    shape=st.sampled_from([(8, 64), (3, 50), (7, 9), (16, 96), (1, 1)]),
    outlier=st.sampled_from([1.0, 100.0, 1e30]),
)
@settings(max_examples=30)
def test_codes_are_the_nearest_values(seed: int, shape: tuple[int, int], outlier: float) -> None:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    weight[0, 0] *= outlier
    qtensor = solve(weight, SIMPLE)
    codes, absmax = twin(weight)
    assert torch.equal(qtensor.scales, absmax)
    differ = qtensor.codes != codes  # at midpoints alone
    assert differ.float().mean() <= 0.02
    error = (qtensor.dequantize() - weight).abs()
    spread = absmax.repeat_interleave(64)[: weight.numel()].view(shape)
    assert (error <= 0.152 * spread * (1 + 1e-5)).all()


@pytest.mark.parametrize("scheme", [SIMPLE, DOUBLE], ids=Scheme.label)
@pytest.mark.parametrize("columns", [192, 100])
def test_search_pays(scheme: Scheme, columns: int, make_inputs: Any, collect: Any) -> None:
    weight = torch.randn(60, columns, generator=torch.Generator().manual_seed(columns))
    stats: InputStats = collect(make_inputs(columns))

    def lost(qtensor: QTensor, importance: torch.Tensor) -> float:
        return float(((qtensor.dequantize() - weight).square() @ importance).sum())

    plain = solve(weight, scheme)
    blind = solve(weight, scheme, Nf4Options())
    (seen,) = quantized(nf4, [weight], stats, scheme, torch.float32, Nf4Options())
    ones = torch.ones(columns)
    assert lost(blind, ones) < 0.9 * lost(plain, ones)
    assert lost(seen.qtensor, stats.diagonal) < 0.8 * lost(plain, stats.diagonal)
    assert lost(seen.qtensor, stats.diagonal) < lost(blind, stats.diagonal)
    assert seen.loss is not None
    error = seen.qtensor.dequantize() - weight
    whole = ((weight @ stats.hessian) * weight).sum()
    assert seen.loss == pytest.approx(float(((error @ stats.hessian) * error).sum() / whole), 1e-3)


@pytest.mark.parametrize("options", [PLAIN, Nf4Options()], ids=str)
def test_scales_are_what_the_nested_form_says(options: Nf4Options) -> None:
    weight = golden_weight(128, 320, outliers=True)
    qtensor = solve(weight, DOUBLE, options)
    assert qtensor.nested is not None
    nested = qtensor.nested
    assert (nested.codes.numel(), nested.absmax.numel()) == (640, 3)
    spread = nested.absmax.repeat_interleave(256)[:640]
    assert torch.equal(qtensor.scales, dynamic_book()[nested.codes.long()] * spread + nested.offset)
    assert torch.isfinite(qtensor.dequantize()).all()
    assert (qtensor.dequantize() - weight).norm() < 0.15 * weight.norm()


@pytest.mark.parametrize("scheme", [SIMPLE, DOUBLE], ids=Scheme.label)
@pytest.mark.parametrize("options", [PLAIN, Nf4Options()], ids=str)
@pytest.mark.parametrize("value", [0.0, 1e-40, 1e35])
def test_extreme_weights_stay_finite(scheme: Scheme, options: Nf4Options, value: float) -> None:
    weight = torch.full((4, 96), value)
    back = solve(weight, scheme, options).dequantize()
    assert torch.isfinite(back).all()
    torch.testing.assert_close(back, weight, rtol=1e-5, atol=1e-38)


def test_what_lies_on_the_grid_comes_back() -> None:
    codes = torch.arange(16).repeat(4, 8)
    weight = NF4[codes] * 0.75
    for options in (PLAIN, Nf4Options()):
        qtensor = solve(weight, SIMPLE, options)
        assert torch.equal(qtensor.codes.long(), codes)
        assert torch.equal(qtensor.dequantize(), weight)
