"""GPTQModel's own loader on the CPU (fp16, its torch kernels), against quantkit's own decode."""

from collections.abc import Callable
from typing import Any

from quantkit.core.facts import LinearFacts
from quantkit.core.scheme import Scheme
from quantkit.engines.gptqmodel import ENGINE

W4, W4_ASYMMETRIC, W4_CHANNEL = Scheme(), Scheme(symmetric=False), Scheme(group_size=None)
SKIP_ONE = {"skip": "1.mlp.down_proj"}
BOUND = 3e-2

CASES: dict[str, tuple[str, Scheme, dict[str, Any]]] = {
    "gptq-w4": ("gptq", W4, {}),
    "gptq-w4-bf16": ("gptq", W4, {"dtype": "bfloat16"}),
    "gptq-channel": ("gptq", W4_CHANNEL, {}),
    "gptq-w2": ("gptq", Scheme("int", 2, 32), {}),
    "gptq-w3": ("gptq", Scheme("int", 3, 128), {}),
    "gptq-w8": ("gptq", Scheme("int", 8, 32), {}),
    "gptq-bias": ("gptq", W4, {"family": "qwen2"}),
    "gptq-tied": ("gptq", W4, {"family": "llama_tied"}),
    "gptq-skip": ("gptq", W4, SKIP_ONE),
    "gptq-conv1d": ("gptq", W4, {"family": "gpt2"}),
    "gptq_v2-w4": ("gptq_v2", W4, {}),
    "gptq_v2-asymmetric": ("gptq_v2", W4_ASYMMETRIC, {}),
    "gptq_v2-w3-asymmetric": ("gptq_v2", Scheme("int", 3, 64, symmetric=False), {}),
    "gptq_v2-conv1d": ("gptq_v2", W4_ASYMMETRIC, {"family": "gpt2"}),
    "awq-w4": ("awq", W4, {}),
    "awq-channel": ("awq", W4_CHANNEL, {}),
    "awq-asymmetric": ("awq", W4_ASYMMETRIC, {}),
    "awq-skip": ("awq", W4_ASYMMETRIC, SKIP_ONE),
}
LINEAR = LinearFacts("model.layers.0.mlp.up_proj", 256, 128)


def test_predicts_what_our_own_decode_predicts(
    measure: Callable[..., dict[str, float | str]],
) -> None:
    verdicts = [ENGINE.refuses(c[0].replace("_", "-"), c[1], LINEAR) for c in CASES.values()]
    assert set(verdicts) == {None}
    found = measure("gptqmodel", CASES, environment="transformers")
    assert {n: f for n, f in found.items() if isinstance(f, str) or f > BOUND} == {}


def test_refuses_other_formats_and_odd_groups() -> None:
    assert set(ENGINE.formats) == {case[0].replace("_", "-") for case in CASES.values()}
    assert "16" in (ENGINE.refuses("gptq", Scheme("int", 4, 48), LINEAR) or "")
    assert ENGINE.refuses("awq", Scheme("int", 4, 256), LINEAR)
