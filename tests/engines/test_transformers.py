"""Every format in transformers on the CPU, against quantkit's own decode of the same file.

Half of the symmetric scales are negative. The bounds are what the kernels' own arithmetic costs
(float32 model; logits span about 4): AVX-512 and torch kernels of GPTQModel round weights to fp16
or bf16, its fused kernel and bitsandbytes compute in bf16, compressed-tensors decompresses exactly.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from quantkit.core.facts import LinearFacts
from quantkit.core.scheme import Scheme
from quantkit.engines.transformers import ENGINE
from tests.engines.conftest import Written, decompressed, interpreter

W4, W4_ASYMMETRIC, W4_CHANNEL = Scheme(), Scheme(symmetric=False), Scheme(group_size=None)
W3_ASYMMETRIC = Scheme("int", 3, 64, symmetric=False)
W8A8 = Scheme("int", 8, None, activation="int8-token")
FP8 = Scheme("fp8", 8, None, activation="fp8-token")
FP8_BLOCK = Scheme("fp8", 8, 128, activation="fp8-group128", rows=128)
FP8_STATIC = Scheme("fp8", 8, None, activation="fp8-tensor", rows=None)
MXFP8, MXFP4 = Scheme("mxfp8", 8, 32), Scheme("mxfp4", 4, 32)
NVFP4, NVFP4_W4A4 = Scheme("nvfp4", 4, 16), Scheme("nvfp4", 4, 16, activation="nvfp4")
NF4, NF4_DOUBLE = Scheme("nf4"), Scheme("nf4", double_quant=True)
SKIP_ONE, QWEN = {"skip": "1.mlp.down_proj"}, {"family": "qwen2"}
MIXED = {"other": {"down_proj": W8A8}, "int8_levels": 127.5}
FP32 = {"dtype": "float32"}  # transformers leaves the norms of bitsandbytes files as they are

ROUNDED, BF16, EXACT = 1e-2, 1e-1, 0.0

# name: format, scheme, options of the artifact, bound on the logits' difference
GPTQMODEL: dict[str, tuple[str, Scheme, dict[str, Any], float]] = {
    "gptq-w4": ("gptq", W4, {}, ROUNDED),
    "gptq-w4-bf16": ("gptq", W4, {"dtype": "bfloat16"}, ROUNDED),
    "gptq-channel": ("gptq", W4_CHANNEL, {}, BF16),
    "gptq-w2": ("gptq", Scheme("int", 2, 32), {}, ROUNDED),
    "gptq-w3": ("gptq", Scheme("int", 3, 128), {}, ROUNDED),
    "gptq-w8": ("gptq", Scheme("int", 8, 32), {}, ROUNDED),
    "gptq-bias": ("gptq", W4, {"family": "qwen2"}, ROUNDED),
    "gptq-tied": ("gptq", W4, {"family": "llama_tied"}, ROUNDED),
    "gptq-skip": ("gptq", W4, {"skip": "o_proj"}, ROUNDED),
    "gptq-skip-one": ("gptq", W4, SKIP_ONE, ROUNDED),
    "gptq_v2-w4": ("gptq_v2", W4, {}, ROUNDED),
    "gptq_v2-asymmetric": ("gptq_v2", W4_ASYMMETRIC, {}, ROUNDED),
    "gptq_v2-w3-asymmetric": ("gptq_v2", W3_ASYMMETRIC, {}, ROUNDED),
    "awq-w4": ("awq", W4, {}, ROUNDED),
    "awq-channel": ("awq", W4_CHANNEL, {}, BF16),
    "awq-asymmetric": ("awq", W4_ASYMMETRIC, {}, ROUNDED),
    "awq-skip": ("awq", W4_ASYMMETRIC, SKIP_ONE, ROUNDED),
    "awq-bias": ("awq", W4_ASYMMETRIC, {"family": "qwen2"}, ROUNDED),
}
BITSANDBYTES: dict[str, tuple[str, Scheme, dict[str, Any], float]] = {
    "bnb": ("bitsandbytes", NF4, FP32, BF16),
    "bnb-bf16": ("bitsandbytes", NF4, {"dtype": "bfloat16"}, BF16),
    "bnb-double": ("bitsandbytes", NF4_DOUBLE, FP32, BF16),
    "bnb-128": ("bitsandbytes", Scheme("nf4", 4, 128), FP32, BF16),
    "bnb-skip": ("bitsandbytes", NF4_DOUBLE, SKIP_ONE | FP32, BF16),
    "bnb-bias": ("bitsandbytes", NF4, {"family": "qwen2"} | FP32, BF16),
    "bnb-tied": ("bitsandbytes", NF4, {"family": "llama_tied"} | FP32, BF16),
    "bnb-conv1d": ("bitsandbytes", NF4, {"family": "gpt2"} | FP32, BF16),
}
COMPRESSED: dict[str, tuple[str, Scheme, dict[str, Any], float]] = {
    "ct-w4": ("compressed-tensors", W4, {}, EXACT),
    "ct-channel": ("compressed-tensors", W4_CHANNEL, {}, EXACT),
    "ct-w2": ("compressed-tensors", Scheme("int", 2, 32), {}, EXACT),
    "ct-w3": ("compressed-tensors", Scheme("int", 3, 64), {}, EXACT),
    "ct-w8": ("compressed-tensors", Scheme("int", 8, 128), {}, EXACT),
    "ct-bias": ("compressed-tensors", W4, {"family": "qwen2"}, EXACT),
    "ct-tied": ("compressed-tensors", W4, {"family": "llama_tied"}, EXACT),
    "ct-skip": ("compressed-tensors", W4, SKIP_ONE, EXACT),
    "ct-w8a8": ("compressed-tensors", W8A8, {"int8_levels": 127.5}, EXACT),
    "ct-mixed": ("compressed-tensors", W4, MIXED, EXACT),
    "ct-w5": ("compressed-tensors", Scheme("int", 5, 64), {}, EXACT),
    "ct-w6": ("compressed-tensors", Scheme("int", 6, 32), {}, EXACT),
    "ct-w7": ("compressed-tensors", Scheme("int", 7, None), {}, EXACT),
    "ct-fp8": ("compressed-tensors", FP8, {"dtype": "bfloat16"}, EXACT),
    "ct-fp8-weights": ("compressed-tensors", Scheme("fp8", 8, None), SKIP_ONE, EXACT),
    "ct-fp8-block": ("compressed-tensors", FP8_BLOCK, QWEN, EXACT),
    "ct-fp8-static": ("compressed-tensors", FP8_STATIC, FP32, EXACT),
    "ct-fp8-mixed": ("compressed-tensors", FP8, {"other": {"down_proj": W4}}, EXACT),
}
DECOMPRESSED: dict[str, Scheme] = {
    "w4": W4,
    "w8a8": W8A8,
    "fp8": FP8,
    "fp8-weights": Scheme("fp8", 8, None),
    "fp8-tensor": Scheme("fp8", 8, None, rows=None),
    "fp8-block": FP8_BLOCK,
    "fp8-static": FP8_STATIC,
    "mxfp8": MXFP8,
    "mxfp4": MXFP4,
    "nvfp4": NVFP4,
    "nvfp4-w4a4": NVFP4_W4A4,
}
NEVER_FP32 = ("mxfp8", "mxfp4", "nvfp4", "nvfp4-w4a4")
"""What compressed-tensors decompresses to bf16 whatever the model is in."""
REFUSED: dict[str, tuple[str, Scheme, dict[str, Any]]] = {
    "gptq-conv1d": ("gptq", W4, {"family": "gpt2"}),
    "gptq_v2-conv1d": ("gptq_v2", W4_ASYMMETRIC, {"family": "gpt2"}),
    "ct-asymmetric": ("compressed-tensors", W4_ASYMMETRIC, {}),
}


def verdict(case: tuple[Any, ...]) -> str | None:
    output, scheme, options = case[:3]
    conv = options.get("family") == "gpt2"
    linear = LinearFacts("model.layers.0.mlp.up_proj", 256, 128, transposed=conv)
    return ENGINE.refuses(output.replace("_", "-"), scheme, linear)


@pytest.mark.parametrize(
    "cases", [GPTQMODEL, BITSANDBYTES, COMPRESSED], ids=lambda c: next(iter(c))
)
def test_predicts_what_our_own_decode_predicts(
    cases: dict[str, Any], measure: Callable[..., dict[str, float | str]]
) -> None:
    assert [name for name, case in cases.items() if verdict(case)] == []
    found = measure("transformers", cases)
    assert {n: f for n, f in found.items() if isinstance(f, str) or f > cases[n][3]} == {}


def test_stops_at_what_our_rules_refuse(measure: Callable[..., dict[str, float | str]]) -> None:
    assert [name for name, case in REFUSED.items() if not verdict(case)] == []
    found = measure("transformers", REFUSED)
    assert {name: f for name, f in found.items() if not isinstance(f, str)} == {}


def test_decompresses_to_our_weights_bit_for_bit(
    write_artifact: Callable[..., Written], run_script: Callable[..., None], tmp_path: Path
) -> None:
    """In the model's dtype, in which `dtype="auto"` loads it, and with `dequantize=True`."""
    interpreter("transformers")  # skips before any work
    folders = {
        f"{name}-{dtype}": write_artifact(name, "compressed-tensors", scheme, dtype=dtype).folder
        for name, scheme in DECOMPRESSED.items()
        for dtype in ("bfloat16", "float16", "float32")
        if dtype == "bfloat16" or name not in NEVER_FP32
    }
    check_weights(folders, run_script, tmp_path)


def test_decodes_fp8_to_our_weights_bit_for_bit(
    write_artifact: Callable[..., Written], run_script: Callable[..., None], tmp_path: Path
) -> None:
    """As it loads blocks of FP8 where there is no GPU; one linear is dense."""
    interpreter("transformers")  # skips before any work
    check_weights(
        {
            f"fp8-{dtype}": write_artifact(dtype, "fp8", FP8_BLOCK, dtype=dtype, **SKIP_ONE).folder
            for dtype in ("bfloat16", "float16", "float32")
        },
        run_script,
        tmp_path,
    )


@pytest.mark.parametrize(
    ("shape", "loads"), [((64, 128), 1), ((128, 64), 1), ((192, 128), 0), ((128, 192), 0)]
)
def test_refuses_cut_blocks_that_transformers_reads_as_others(
    shape: tuple[int, int], loads: int
) -> None:
    """It divides a weight evenly among its scales."""
    linear = LinearFacts("model.layers.0.mlp.up_proj", *shape)
    assert (ENGINE.refuses("fp8", FP8_BLOCK, linear) is None) == loads


def check_weights(
    folders: dict[str, Path], run_script: Callable[..., None], tmp_path: Path
) -> None:
    for name, model, weights in decompressed(folders, tmp_path, run_script):
        assert len(weights) == 14
        for linear, weight in weights.items():
            if model.scheme(linear) is None:
                ours = model.parameter(f"{linear}.weight")
            else:
                ours = model.qtensor(linear).dequantize(weight.dtype)
            assert torch.equal(weight, ours), (name, linear)
            assert str(weight.dtype).removeprefix("torch.") == name.rpartition("-")[2]


@pytest.mark.parametrize("output", ["gptq", "gptq-v2", "awq", "bitsandbytes"])
def test_refuses_experts_that_transformers_would_leave_random(output: str) -> None:
    expert = LinearFacts("model.layers.0.mlp.experts.7.up_proj", 256, 128)
    assert ENGINE.refuses(output, W4, expert)
    assert ENGINE.refuses("compressed-tensors", W4, expert) is None
    assert ENGINE.refuses("compressed-tensors", W8A8, expert)


def test_refuses_groups_that_gptqmodel_has_no_kernel_for() -> None:
    linear = LinearFacts("model.layers.0.mlp.up_proj", 256, 480)
    assert "128" in (ENGINE.refuses("gptq", Scheme("int", 4, 48), linear) or "")
