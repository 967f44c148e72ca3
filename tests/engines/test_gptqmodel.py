"""GPTQModel's own loader on the CPU (fp16, its torch kernels), against quantkit's own decode."""

from collections.abc import Callable
from typing import Any

import pytest

from quantkit.core.scheme import Scheme

W4, W4_ASYMMETRIC = Scheme("int", 4, 64), Scheme("int", 4, 64, symmetric=False)

CASES: dict[str, tuple[str, Scheme, dict[str, Any]]] = {
    "gptq-w4": ("gptq", W4, {}),
    "gptq-w4-bf16": ("gptq", W4, {"dtype": "bfloat16"}),
    "gptq-w4-channel": ("gptq", Scheme("int", 4, None), {}),
    "gptq-w2": ("gptq", Scheme("int", 2, 32), {}),
    "gptq-w3": ("gptq", Scheme("int", 3, 128), {}),
    "gptq-w8": ("gptq", Scheme("int", 8, 32), {}),
    "gptq-bias": ("gptq", W4, {"family": "qwen2"}),
    "gptq-tied": ("gptq", W4, {"family": "llama_tied"}),
    "gptq-skip": ("gptq", W4, {"skip": "1.mlp.down_proj"}),
    "gptq-conv1d": ("gptq", W4, {"family": "gpt2"}),
    "gptq_v2-w4": ("gptq_v2", W4, {}),
    "gptq_v2-w4-asymmetric": ("gptq_v2", W4_ASYMMETRIC, {}),
    "gptq_v2-w3-asymmetric": ("gptq_v2", Scheme("int", 3, 64, symmetric=False), {}),
    "gptq_v2-conv1d": ("gptq_v2", W4_ASYMMETRIC, {"family": "gpt2"}),
    "awq-w4": ("awq", W4, {}),
    "awq-w4-channel": ("awq", Scheme("int", 4, None), {}),
    "awq-w4-asymmetric": ("awq", W4_ASYMMETRIC, {}),
    "awq-skip": ("awq", W4_ASYMMETRIC, {"skip": "1.mlp.down_proj"}),
}


@pytest.fixture(scope="module")
def loaded(
    write_artifact: Callable[..., Any], run_engine: Callable[..., dict[str, Any]]
) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Name -> what was written, and what GPTQModel made of it."""
    run_engine("gptqmodel", {}, environment="transformers")
    written = {
        name: write_artifact(name, kind, scheme, **options)
        for name, (kind, scheme, options) in CASES.items()
    }
    folders = {name: artifact.folder for name, artifact in written.items()}
    answers = run_engine("gptqmodel", folders, environment="transformers")
    return {name: (written[name], answers[name]) for name in CASES}


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_our_own_decode(
    name: str, loaded: dict[str, tuple[Any, dict[str, Any]]]
) -> None:
    written, answer = loaded[name]
    assert answer["error"] == ""
    difference = (answer["logits"] - written.logits).abs().max().item()
    print(f"{name:24} {difference:.2e} {answer['kernels']}")
    assert difference < 3e-2
