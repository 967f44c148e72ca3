"""Every format in transformers on the CPU, against quantkit's own decode of the same file."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from quantkit.core import registry
from quantkit.core.format import LinearFacts
from quantkit.core.scheme import Scheme

W4, W4_ASYMMETRIC = Scheme("int", 4, 64), Scheme("int", 4, 64, symmetric=False)
W8A8 = Scheme("int", 8, None, activation="int8-token")
NF4, NF4_DOUBLE = Scheme("nf4", 4, 64), Scheme("nf4", 4, 64, double_quant=True)

# name: format, scheme, options of the artifact, bound on the logits' difference
CASES: dict[str, tuple[str, Scheme, dict[str, Any], float]] = {
    "gptq-w4": ("gptq", W4, {}, 1e-2),
    "gptq-w4-bf16": ("gptq", W4, {"dtype": "bfloat16"}, 1e-2),
    "gptq-w4-channel": ("gptq", Scheme("int", 4, None), {}, 1e-1),
    "gptq-w2": ("gptq", Scheme("int", 2, 32), {}, 1e-2),
    "gptq-w3": ("gptq", Scheme("int", 3, 128), {}, 1e-2),
    "gptq-w8": ("gptq", Scheme("int", 8, 32), {}, 1e-2),
    "gptq-bias": ("gptq", W4, {"family": "qwen2"}, 1e-2),
    "gptq-tied": ("gptq", W4, {"family": "llama_tied"}, 1e-2),
    "gptq-skip": ("gptq", W4, {"skip": "o_proj"}, 1e-2),
    "gptq-skip-one": ("gptq", W4, {"skip": "1.mlp.down_proj"}, 1e-2),
    "gptq-conv1d": ("gptq", W4, {"family": "gpt2"}, 1e-2),
    "gptq_v2-w4": ("gptq_v2", W4, {}, 1e-2),
    "gptq_v2-w4-asymmetric": ("gptq_v2", W4_ASYMMETRIC, {}, 1e-2),
    "gptq_v2-w3-asymmetric": ("gptq_v2", Scheme("int", 3, 64, symmetric=False), {}, 1e-2),
    "gptq_v2-conv1d": ("gptq_v2", W4_ASYMMETRIC, {"family": "gpt2"}, 1e-2),
    "awq-w4": ("awq", W4, {}, 1e-2),
    "awq-w4-channel": ("awq", Scheme("int", 4, None), {}, 1e-2),
    "awq-w4-asymmetric": ("awq", W4_ASYMMETRIC, {}, 1e-2),
    "awq-skip": ("awq", W4_ASYMMETRIC, {"skip": "1.mlp.down_proj"}, 1e-2),
    "awq-bias": ("awq", W4_ASYMMETRIC, {"family": "qwen2"}, 1e-2),
    "bnb": ("bitsandbytes", NF4, {}, 1e-1),
    "bnb-bf16": ("bitsandbytes", NF4, {"dtype": "bfloat16"}, 1e-1),
    "bnb-double": ("bitsandbytes", NF4_DOUBLE, {}, 1e-1),
    "bnb-g128": ("bitsandbytes", Scheme("nf4", 4, 128), {}, 1e-1),
    "bnb-skip": ("bitsandbytes", NF4_DOUBLE, {"skip": "1.mlp.down_proj"}, 1e-1),
    "bnb-bias": ("bitsandbytes", NF4, {"family": "qwen2"}, 1e-1),
    "bnb-tied": ("bitsandbytes", NF4, {"family": "llama_tied"}, 1e-1),
    "bnb-conv1d": ("bitsandbytes", NF4, {"family": "gpt2"}, 1e-1),
    "ct-w4": ("compressed-tensors", W4, {}, 1e-5),
    "ct-w4-channel": ("compressed-tensors", Scheme("int", 4, None), {}, 1e-5),
    "ct-w2": ("compressed-tensors", Scheme("int", 2, 32), {}, 1e-5),
    "ct-w3": ("compressed-tensors", Scheme("int", 3, 64), {}, 1e-5),
    "ct-w8": ("compressed-tensors", Scheme("int", 8, 128), {}, 1e-5),
    "ct-bias": ("compressed-tensors", W4, {"family": "qwen2"}, 1e-5),
    "ct-tied": ("compressed-tensors", W4, {"family": "llama_tied"}, 1e-5),
    "ct-skip": ("compressed-tensors", W4, {"skip": "1.mlp.down_proj"}, 1e-5),
    "ct-w8a8": ("compressed-tensors", W8A8, {"int8_levels": 127.5}, 1e-5),
    "ct-asym": ("compressed-tensors", W4_ASYMMETRIC, {}, 1e-5),
    "ct-mixed": ("compressed-tensors", W4, {"other": {"down_proj": Scheme("int", 8, None)}}, 1e-5),
}


@pytest.fixture(scope="module")
def loaded(
    write_artifact: Callable[..., Any], run_engine: Callable[..., dict[str, Any]]
) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Name -> what was written, and what transformers made of it."""
    run_engine("transformers", {}, dtype="float32")
    written = {
        name: write_artifact(name, kind, scheme, **options)
        for name, (kind, scheme, options, _) in CASES.items()
    }
    folders = {name: artifact.folder for name, artifact in written.items()}
    answers = run_engine("transformers", folders, dtype="float32")
    return {name: (written[name], answers[name]) for name in CASES}


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_our_own_decode(
    name: str, loaded: dict[str, tuple[Any, dict[str, Any]]]
) -> None:
    written, answer = loaded[name]
    assert answer["error"] == ""
    assert answer["keys"] == []
    difference = (answer["logits"] - written.logits).abs().max().item()
    print(f"{name:24} {difference:.2e} {answer['kernels']}")
    assert difference < CASES[name][3]
