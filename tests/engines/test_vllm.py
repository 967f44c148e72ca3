"""What vLLM's CPU build loads, against quantkit's own decode of the same file.

Each artifact combines what it can, as an engine takes seconds to start: a bias, a tied head,
linears left out, negative scales. The bounds are for log-probabilities in fp16; in W8A8, where a
value on the edge between two of 256 steps may go either way, they are wider.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quantkit.core.facts import LinearFacts
from quantkit.core.scheme import Scheme
from quantkit.engines.vllm import ENGINE

W4, W4_ASYMMETRIC, W4_CHANNEL = Scheme(), Scheme(symmetric=False), Scheme(group_size=None)
W8A8 = Scheme("int", 8, None, activation="int8-token")
FP8 = Scheme("fp8", 8, None, activation="fp8-token")
NVFP4 = Scheme("nvfp4", 4, 16)
FP8_BLOCK = Scheme("fp8", 8, 128, activation="fp8-group128", rows=128)
QWEN, SKIP_ONE = {"family": "qwen2"}, {"skip": "1.mlp.down_proj"}

# name: format, scheme, options of the artifact, bound
CASES: dict[str, tuple[str, Scheme, dict[str, Any], float]] = {
    "gptq-skip": ("gptq", W4, SKIP_ONE, 2e-2),
    "gptq-conv1d": ("gptq", W4, {"family": "gpt2"}, 2e-2),
    "gptq_v2-bias": ("gptq_v2", W4, QWEN, 2e-2),
    "awq-skip": ("awq", W4_ASYMMETRIC, SKIP_ONE, 2e-2),
    "awq-bias": ("awq", W4, QWEN, 2e-2),
    "ct-tied": ("compressed-tensors", W4, {"family": "llama_tied"}, 2e-2),
    "ct-asymmetric": ("compressed-tensors", W4_ASYMMETRIC, SKIP_ONE, 2e-2),
    "ct-mixed": ("compressed-tensors", W4, {"other": {"down_proj": W4_CHANNEL}}, 2e-2),
    "ct-w8a8": ("compressed-tensors", W8A8, QWEN, 2e-1),
    "ct-fp8": ("compressed-tensors", FP8, SKIP_ONE, 4e-1),
}
# vLLM 0.32's int8 kernel for processors with AMX aborts on this case ("scalar path not
# implemented"); the server's test runs W8A8 there all the same.
AMX = "amx_int8" in Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
RUN = {name: case for name, case in CASES.items() if not (AMX and name == "ct-w8a8")}
LINEAR = LinearFacts("model.layers.0.mlp.up_proj", 256, 128)


def test_predicts_what_our_own_decode_predicts(
    measure: Callable[..., dict[str, float | str]],
) -> None:
    verdicts = [ENGINE.refuses(c[0].replace("_", "-"), c[1], LINEAR) for c in CASES.values()]
    assert set(verdicts) == {None}
    found = measure("vllm", RUN)
    assert {n: f for n, f in found.items() if isinstance(f, str) or f > CASES[n][3]} == {}


@pytest.mark.parametrize(
    ("output", "scheme", "reason"),
    [
        ("gptq-v2", W4_ASYMMETRIC, "symmetric"),
        ("gptq", Scheme("int", 3, 64), "4 or 8 bits"),
        ("gptq", Scheme("int", 4, 16), "groups of 32"),
    ],
)
def test_refuses(output: str, scheme: Scheme, reason: str) -> None:
    assert reason in (ENGINE.refuses(output, scheme, LINEAR) or "")


def test_lists_no_format_that_it_has_no_loader_for() -> None:
    assert "bitsandbytes" not in ENGINE.formats
    assert {case[0].replace("_", "-") for case in CASES.values()} <= set(ENGINE.formats)


def test_refuses_experts_of_a_block_in_several_schemes() -> None:
    """ "All MoE projections need to have same quantization scheme", says vLLM."""
    names = [f"model.layers.0.mlp.experts.{i}.{part}" for i in (0, 1) for part in ("up", "down")]
    alike: dict[str, Scheme | None] = dict.fromkeys(names, W4)
    other: dict[str, Scheme | None] = {"model.layers.1.mlp.experts.0.up": None, "lm_head": None}
    assert ENGINE.refuses_mix(alike | other) is None
    for scheme in (W4_CHANNEL, None):
        fault = ENGINE.refuses_mix(alike | {names[-1]: scheme})
        assert "model.layers.0.mlp" in (fault or "")


def test_refuses_mamba_layers_that_it_makes_without_quantization() -> None:
    """Seen with Jamba: it stops at the codes of `mamba.in_proj`, and in GPTQ at any `g_idx`."""
    mixer = LinearFacts("model.layers.0.mamba.in_proj", 512, 256, model_type="jamba")
    other = replace(mixer, name="model.layers.0.feed_forward.up_proj")
    assert "Mamba layers" in (ENGINE.refuses("awq", W4, mixer) or "")
    assert ENGINE.refuses("awq", W4, other) is None
    assert "g_idx" in (ENGINE.refuses("gptq", W4, other) or "")
    assert ENGINE.refuses("awq", W4, replace(mixer, model_type="nemotron_h")) is None


def test_refuses_blocks_that_are_cut_where_linears_are_merged_or_divided() -> None:
    """`validate_fp8_block_shape`: of merged linears only the last one may have a cut block."""
    names = tuple(f"model.layers.0.self_attn.{part}_proj" for part in "qkv")
    first, last = (replace(LINEAR, name=n, out_features=192, fused=names) for n in names[::2])
    assert "whole blocks" in (ENGINE.refuses("compressed-tensors", FP8_BLOCK, first) or "")
    assert ENGINE.refuses("compressed-tensors", FP8_BLOCK, last) is None
    assert ENGINE.refuses("compressed-tensors", FP8_BLOCK, replace(LINEAR, in_features=192))
    for part, legal in ((replace(LINEAR, out_features=128), True), (first, False)):
        fault = ENGINE.refuses_slice("compressed-tensors", FP8_BLOCK, LINEAR, part)
        assert (fault is None) == legal


@pytest.mark.parametrize(
    ("scheme", "capability", "reason"),
    [
        (Scheme("mxfp4", 4, 32), "7.5", "8.0"),
        (Scheme("nvfp4", 4, 16), "7.0", "7.5"),
        (Scheme("fp8", 8, None), "gfx942", "AMD"),
        (Scheme("int", 5, 64), "gfx942", "AMD"),
    ],
)
def test_refuses_gpus_without_a_kernel(scheme: Scheme, capability: str, reason: str) -> None:
    assert reason in (ENGINE.refuses_gpu("compressed-tensors", scheme, capability) or "")


def test_rules_of_modelopt_and_of_blocks_in_fp8() -> None:
    """What linears do there, `test_vllm_floats.py` runs; of experts nothing was run."""
    expert = replace(LINEAR, name="model.layers.0.mlp.experts.3.up_proj")
    for output, scheme in (("modelopt", FP8), ("modelopt", NVFP4), ("fp8", FP8_BLOCK)):
        assert ENGINE.refuses(output, scheme, LINEAR) is None
        assert "experts" in (ENGINE.refuses(output, scheme, expert) or "")
        assert ENGINE.refuses("compressed-tensors", scheme, expert) is None
    assert "8.0" in (ENGINE.refuses_gpu("modelopt", FP8, "7.5") or "")
    assert ENGINE.refuses_gpu("modelopt", NVFP4, "7.5") is None
    assert ENGINE.refuses_gpu("fp8", FP8_BLOCK, "7.5") is None


@pytest.mark.parametrize("scheme", [FP8, FP8_BLOCK, NVFP4, Scheme("int", 5, 64)])
def test_runs_on_turing_and_later(scheme: Scheme) -> None:
    """Below 8.9 FP8 has activations in 16 bits, NVFP4 below 10.0."""
    for capability in ("7.5", "8.0", "8.9", "9.0", "10.0", "12.0"):
        assert ENGINE.refuses_gpu("compressed-tensors", scheme, capability) is None
