"""In which dtype engines serve what files hold in another: by their own rules."""

from collections.abc import Callable
from typing import Any

import pytest

from quantkit.core import registry
from quantkit.core.engine import Engine
from quantkit.core.serving import Degrees, Load
from quantkit.planning.model.weights import PlannedModel, stored_build, weigh
from quantkit.planning.serve.deploy import deploy
from quantkit.planning.serve.place import named_place
from tests.planning.conftest import serving_of

Planned = Callable[..., PlannedModel]
ONE = Degrees()


@pytest.mark.parametrize(
    ("engine", "dtype", "family", "capability", "served"),
    [
        ("vllm", "F32", "llama", "8.9", "BF16"),
        ("vllm", "F32", "llama", None, "BF16"),
        ("vllm", "F32", "llama", "gfx942", "BF16"),
        ("vllm", "F32", "llama", "7.5", "F16"),
        ("vllm", "BF16", "llama", "7.5", "F16"),
        ("vllm", "BF16", "gemma2", "7.5", "F32"),
        ("vllm", "F16", "gemma2", "8.0", "BF16"),
        ("vllm", "F64", "llama", "8.0", "BF16"),
        ("vllm", "F16", "llama", "9.0", "F16"),
        ("sglang", "F32", "llama", "8.9", "F16"),
        ("sglang", "F32", "gemma2", "8.9", "BF16"),
        ("sglang", "BF16", "llama", "8.9", "BF16"),
        ("transformers", "F32", "llama", "8.9", "F32"),
        ("transformers", "BF16", "llama", "8.9", "BF16"),
    ],
)
def test_what_the_default_dtype_stands_for(
    engine: str, dtype: str, family: str, capability: str | None, served: str
) -> None:
    rules: Engine = registry.load("engines", engine, "ENGINE")
    assert rules.serves(dtype, family, capability) == served


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_model_in_fp32_is_served_in_16_bits(planned: Planned, engine: str) -> None:
    """Half the bytes of its files, as one in bf16 would be; and the rule says so."""
    place = named_place("l40s", engine, ONE)
    wide, half = (planned("Llama-3-8B", torch_dtype=d) for d in ("float32", "bfloat16"))
    fp32, bf16 = (deploy(m, stored_build(m), place, Load(8192)) for m in (wide, half))
    assert sum(weigh(wide, stored_build(wide)).values()) == 2 * bf16.weights
    assert (fp32.weights, fp32.longest) == (bf16.weights, bf16.longest)
    rules = {figure.rule for figure in fp32.fixed if figure.name.startswith("weights")}
    assert all(f"{engine} serves f32 in " in rule for rule in rules)
    one, other = (serving_of(m, (), place, Load(8192)).builds[0].decode for m in (wide, half))
    assert one == other is not None


def test_transformers_computes_in_the_dtype_of_the_config(planned: Planned) -> None:
    place = named_place("h200", "transformers", ONE)
    wide, half = (planned("Llama-3-8B", torch_dtype=d) for d in ("float32", "bfloat16"))
    fp32, bf16 = (deploy(m, stored_build(m), place, Load(8192)) for m in (wide, half))
    assert (fp32.weights, fp32.cache.bytes) == (2 * bf16.weights, 2 * bf16.cache.bytes)
    assert fp32.load.cache == "32-bit"
    peaks = [[f.bytes for f in d.fixed if f.name == "activations"] for d in (fp32, bf16)]
    assert peaks[0] == [2 * peaks[1][0]]


def test_what_ranks_share_and_routing_keeps_its_fp32(planned: Planned) -> None:
    model = planned("DeepSeek-V3", torch_dtype="float32")
    place = named_place("h200", "vllm", Degrees(8))
    found = deploy(model, stored_build(model), place, Load(8192))
    half = planned("DeepSeek-V3")
    assert found.weights == deploy(half, stored_build(half), place, Load(8192)).weights
    kept: list[Any] = [k for k in model.kinds if k.tensor.buffer]
    assert {k.tensor.dtype for k in kept} == {"F32"}
