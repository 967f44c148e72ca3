"""SGLang needs a GPU: only its rules are tested, against its source as it was read."""

from dataclasses import replace

import pytest

from quantkit.core.facts import LinearFacts
from quantkit.core.scheme import Scheme
from quantkit.engines.sglang import ENGINE

LINEAR = LinearFacts("model.layers.0.mlp.up_proj", 256, 128)


@pytest.mark.parametrize(
    ("output", "scheme"),
    [
        ("gptq", Scheme("int", 4, 128)),
        ("gptq", Scheme("int", 8, None)),
        ("awq", Scheme("int", 4, 64, symmetric=False)),
        ("compressed-tensors", Scheme("int", 8, 32, symmetric=False)),
        ("compressed-tensors", Scheme("int", 8, None, activation="int8-token")),
        ("bitsandbytes", Scheme("nf4", 4, 64, double_quant=True)),
        ("compressed-tensors", Scheme("fp8", 8, None, activation="fp8-token")),
        ("compressed-tensors", Scheme("fp8", 8, 128, activation="fp8-group128", rows=128)),
        ("compressed-tensors", Scheme("nvfp4", 4, 16, activation="nvfp4")),
    ],
)
def test_loads(output: str, scheme: Scheme) -> None:
    assert ENGINE.refuses(output, scheme, LINEAR) is None


@pytest.mark.parametrize(
    ("output", "scheme", "reason"),
    [
        ("gptq-v2", Scheme("int", 4, 128, symmetric=False), "symmetric"),
        ("gptq", Scheme("int", 3, 128), "4 and 8 bits"),
        ("compressed-tensors", Scheme("int", 2, 64), "4 and 8 bits"),
        ("gptq", Scheme("int", 4, 16), "groups of 32"),
        ("compressed-tensors", Scheme("int", 5, 64), "4 and 8 bits"),
        ("compressed-tensors", Scheme("mxfp4", 4, 32), "MXFP4"),
        ("compressed-tensors", Scheme("mxfp8", 8, 32), "MXFP8"),
    ],
)
def test_refuses(output: str, scheme: Scheme, reason: str) -> None:
    fault = ENGINE.refuses(output, scheme, LINEAR)
    assert fault is not None
    assert reason in fault


def test_refuses_conv1d() -> None:
    conv = LinearFacts("h.0.mlp.c_fc", 512, 128, transposed=True)
    assert "Conv1D" in (ENGINE.refuses("gptq", Scheme("int", 4, 64), conv) or "")


def test_refuses_blocks_that_are_cut_where_linears_are_merged_or_divided() -> None:
    block = Scheme("fp8", 8, 128, activation="fp8-group128", rows=128)
    names = tuple(f"model.layers.0.self_attn.{part}_proj" for part in "qkv")
    first, last = (replace(LINEAR, name=n, out_features=192, fused=names) for n in names[::2])
    assert "whole blocks" in (ENGINE.refuses("compressed-tensors", block, first) or "")
    assert ENGINE.refuses("compressed-tensors", block, last) is None
    assert ENGINE.refuses("compressed-tensors", block, replace(LINEAR, in_features=192))
    for part, legal in ((replace(LINEAR, out_features=128), True), (first, False)):
        fault = ENGINE.refuses_slice("compressed-tensors", block, LINEAR, part)
        assert (fault is None) == legal
