"""SGLang needs a GPU: only its rules are tested, against its source as it was read."""

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
    ],
)
def test_refuses(output: str, scheme: Scheme, reason: str) -> None:
    fault = ENGINE.refuses(output, scheme, LINEAR)
    assert fault is not None
    assert reason in fault


def test_refuses_conv1d() -> None:
    conv = LinearFacts("h.0.mlp.c_fc", 512, 128, transposed=True)
    assert "Conv1D" in (ENGINE.refuses("gptq", Scheme("int", 4, 64), conv) or "")
