"""A model of runtime linears against the same artifact decoded to dense weights."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from quantkit.bench.linear import QuantizedLinear, Workload
from quantkit.bench.runtime import load_runtime
from quantkit.core.errors import RefusedError
from quantkit.core.progress import Progress
from quantkit.model.open import open_model
from quantkit.model.opened import load_dense

BRIEF = Workload(prefill_rows=8, decode_steps=1)
IDS = torch.arange(48).view(2, 24) * 5 % 256


@pytest.mark.parametrize(
    ("recipe", "family"),
    [
        ("w4", "gpt2"),
        pytest.param("w4-asymmetric", "qwen2", marks=pytest.mark.long),
        pytest.param("w8", "gemma3", marks=pytest.mark.long),
        pytest.param("w8-group", "gpt2", marks=pytest.mark.long),
        pytest.param("w8a8", "llama_tied", marks=pytest.mark.long),
        ("w8a8", "qwen2"),
    ],
)
def test_predicts_what_the_dequantized_model_predicts(
    quantized: Callable[..., Path], recipe: str, family: str
) -> None:
    folder = quantized(recipe, family)
    runtime = load_runtime(open_model(folder), BRIEF)
    with torch.no_grad():
        found = runtime.network(IDS).logits
        expected = load_dense(open_model(folder))(IDS).logits
    # a rounding of W8A8's inputs that falls the other way is seen
    bound = 2e-2 if recipe == "w8a8" else 1e-4
    assert (found - expected).abs().max() < bound * expected.abs().max()


def test_no_weight_of_a_block_is_dense_and_each_kernel_is_counted(
    quantized: Callable[..., Path],
) -> None:
    told: list[Progress] = []
    runtime = load_runtime(open_model(quantized("w4")), report=told.append)
    linears = [m for m in runtime.network.modules() if isinstance(m, QuantizedLinear)]
    assert len(linears) == sum(runtime.kernels.values()) == 2 * 7
    assert runtime.kernel == "torch int4pack (cpu)"
    assert [name for name, _ in runtime.blocks()] == ["model.layers.0", "model.layers.1"]
    assert not [p for _, block in runtime.blocks() for p in block.parameters() if p.ndim > 1]
    assert told[-1].done == told[-1].total


def test_a_plain_model_runs_as_torch_runs_it(tiny_checkpoint_cache: Callable[..., Path]) -> None:
    runtime = load_runtime(open_model(tiny_checkpoint_cache("llama", dtype="bfloat16")))
    assert runtime.kernel == "torch linear bfloat16"
    assert runtime.network(IDS).logits.dtype == torch.bfloat16


def test_a_scheme_without_a_kernel_is_refused_with_its_linear_and_reason(
    tiny_checkpoint_cache: Callable[..., Path], tmp_path: Path
) -> None:
    from quantkit import quantize
    from quantkit.recipes.loader import build_recipe

    source = tiny_checkpoint_cache("llama")
    recipe = build_recipe("gptq-w3", method="rtn")
    quantize(str(source), tmp_path / "out", recipe=recipe, device="cpu", evaluate=False)
    with pytest.raises(RefusedError, match=r"layers\.0\..*W3") as refusal:
        load_runtime(open_model(tmp_path / "out"))
    assert "4-bit integers" in str(refusal.value.why)
