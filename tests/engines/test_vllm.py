"""What vLLM's CPU build loads, against quantkit's own decode of the same file.

One engine a process, so each artifact combines what it can: a bias, a tied head, linears left out.
"""

from collections.abc import Callable
from typing import Any

import pytest

from quantkit.core.scheme import Scheme

W4, W4_ASYMMETRIC = Scheme("int", 4, 64), Scheme("int", 4, 64, symmetric=False)
W8A8 = Scheme("int", 8, None, activation="int8-token")

# name: format, scheme, options of the artifact, vLLM's dtype, bound on the log-probabilities
CASES: dict[str, tuple[str, Scheme, dict[str, Any], str, float]] = {
    "gptq-skip": ("gptq", W4, {"skip": "1.mlp.down_proj"}, "float16", 2e-2),
    "gptq_v2-bias": ("gptq_v2", W4, {"family": "qwen2"}, "float16", 2e-2),
    "gptq-conv1d": ("gptq", W4, {"family": "gpt2"}, "float16", 2e-2),
    "awq-skip": ("awq", W4_ASYMMETRIC, {"skip": "1.mlp.down_proj"}, "float16", 2e-2),
    "awq-bias": ("awq", W4, {"family": "qwen2"}, "float16", 2e-2),
    "ct-tied": ("compressed-tensors", W4, {"family": "llama_tied"}, "float16", 2e-2),
    "ct-asymmetric": (
        "compressed-tensors",
        W4_ASYMMETRIC,
        {"skip": "1.mlp.down_proj"},
        "float16",
        2e-2,
    ),
    "ct-w8a8": ("compressed-tensors", W8A8, {"family": "qwen2"}, "float32", 2e-1),
    "ct-mixed": ("compressed-tensors", W4, {"other": {"down_proj": Scheme("int", 4, None)}}, "float16", 2e-2),
}


@pytest.mark.parametrize("name", CASES)
def test_log_probabilities_are_those_of_our_own_decode(
    name: str, write_artifact: Callable[..., Any], run_engine: Callable[..., dict[str, Any]]
) -> None:
    kind, scheme, options, dtype, bound = CASES[name]
    written = write_artifact(name, kind, scheme, **options)
    answer = run_engine("vllm", {name: written.folder}, dtype=dtype)[name]
    assert answer["error"] == ""
    expected = written.logits.log_softmax(-1)[:, :-1]
    difference = (answer["logits"] - expected).abs()
    print(f"{name:24} {difference.max().item():.2e} mean {difference.mean().item():.2e}")
    assert difference.max() < bound
