"""Quantized experts and hybrids in transformers and GPTQModel, against our own decode."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import quantkit
from quantkit.core.facts import LinearFacts
from quantkit.core.scheme import Scheme
from quantkit.engines.transformers import ENGINE
from quantkit.model.open import open_model
from tests.conftest import WIDE
from tests.engines.conftest import TOKENS, decompressed, interpreter


def answers(
    engine: str, folders: Mapping[str, Path], folder: Path, run_script: Callable[..., None]
) -> dict[str, tuple[str, torch.Tensor]]:
    """For each artifact the engine's error or odd keys, and its logits."""
    artifacts = {name: str(path) for name, path in folders.items()}
    job = {"engine": engine, "artifacts": artifacts, "tokens": TOKENS}
    (folder / "job.json").write_text(json.dumps(job))
    run_script("transformers", "predict.py", str(folder / "job.json"))
    found = {}
    for name in folders:
        answer = json.loads((folder / f"{name}.json").read_text())
        logits = load_file(folder / f"{name}.safetensors")["logits"]
        found[name] = (answer["error"] or " ".join(answer.get("keys", ())), logits)
    return found


@pytest.fixture
def artifact(
    tiny_checkpoint_cache: Callable[..., Path], tmp_path: Path
) -> Callable[[str, str], Path]:
    """A tiny model of a family, quantized by GPTQ to 4 bits in a format."""

    def make(family: str, output: str) -> Path:
        interpreter("transformers")  # skips before any work
        source = str(tiny_checkpoint_cache(family))
        recipe = quantkit.build_recipe(
            "gptq", format=output, group_size=32, samples=2, sequence_length=32
        )
        out = tmp_path / f"{family}-{output}"
        return quantkit.quantize(source, out, recipe=recipe, evaluate=False).output

    return make


def own(folder: Path) -> torch.Tensor:
    """Logits of our own decode, fp32 (sequences, length, vocabulary)."""
    model = open_model(folder)
    head = model.head()
    return torch.stack([head(rows) for rows in model.hidden_states(torch.tensor(TOKENS))])


def test_transformers_predicts_what_our_own_decode_predicts_or_is_not_promised(
    artifact: Callable[..., Path], tmp_path: Path, run_script: Callable[..., None]
) -> None:
    """For experts that were fused it looks for the fused parameter, and would make a random one."""
    folders = {family: artifact(family, "compressed-tensors") for family in WIDE}
    found = answers("transformers", folders, tmp_path, run_script)
    assert "experts" in found.pop("experts_fused")[0]
    manifest = json.loads((folders["experts_fused"] / "quantkit.json").read_text())
    assert None not in manifest["engines"].values()
    for family, (fault, logits) in found.items():
        assert not fault, (family, fault)
        expected = own(folders[family])
        # 2e-3 was seen where a recurrence is summed in another order, under 1e-3 elsewhere; a few
        # tokens are further off, where two experts tie and the order decides which is taken
        off = (logits - expected).norm(dim=-1) / expected.norm(dim=-1)
        assert off.median() < 5e-3, family
        assert (off < 5e-3).float().mean() > 0.8, family


FLOATS: dict[str, tuple[str, dict[str, Any]]] = {
    "channel": ("fp8", {}),
    "channel-weights": ("fp8", {"settings": ["scheme.activation=null"]}),
    "tensor-weights": ("fp8-static", {"settings": ["scheme.activation=null"]}),
    "block": ("fp8-block", {}),
    "fp8": ("fp8-block", {"format": "fp8"}),
    "mxfp4": ("mxfp4", {}),
}
"""Recipes of experts that transformers decodes."""


def test_transformers_decodes_experts_in_floats_bit_for_bit(
    tiny_checkpoint_cache: Callable[..., Path], tmp_path: Path, run_script: Callable[..., None]
) -> None:
    interpreter("transformers")  # skips before any work
    folders = {}
    for family in ("experts_apart", "experts_renamed"):
        source = str(tiny_checkpoint_cache(family, dtype="bfloat16"))
        for name, (start, more) in FLOATS.items():
            recipe = quantkit.build_recipe(start, samples=2, sequence_length=32, **more)
            out = tmp_path / f"{family}-{name}"
            made = quantkit.quantize(source, out, recipe=recipe, evaluate=False)
            assert made.engines["transformers"] is None, (family, name)
            folders[out.name] = out
    for name, model, weights in decompressed(folders, tmp_path, run_script):
        fused = [n for n in weights if n.endswith(".gate_up_proj")]
        assert len(fused) == 2, name
        for layer in (n.removesuffix(".gate_up_proj") for n in fused):
            for i, found in enumerate(weights[f"{layer}.gate_up_proj"]):
                gate, up, down = (
                    model.qtensor(f"{layer}.{i}.{part}_proj").dequantize(found.dtype)
                    for part in ("gate", "up", "down")
                )
                assert torch.equal(found, torch.cat([gate, up])), (name, layer, i)
                assert torch.equal(weights[f"{layer}.down_proj"][i], down), (name, i)


@pytest.mark.parametrize("output", ["compressed-tensors", "fp8"])
def test_experts_whose_blocks_are_cut_are_not_promised(output: str) -> None:
    """It fails at them in compressed-tensors, and reads others in `fp8`."""
    block = Scheme("fp8", 8, 128, activation="fp8-group128", rows=128)
    for count, loads in ((64, True), (128, True), (192, False), (256, True)):
        linear = LinearFacts("model.layers.0.mlp.experts.0.up_proj", count, 128)
        assert (ENGINE.refuses(output, block, linear) is None) == loads, count


def test_gptqmodel_loads_experts(
    artifact: Callable[..., Path], tmp_path: Path, run_script: Callable[..., None]
) -> None:
    """In fp16 a router sends some tokens elsewhere; most stay."""
    folders = {"experts_apart": artifact("experts_apart", "gptq")}
    ((fault, logits),) = answers("gptqmodel", folders, tmp_path, run_script).values()
    assert not fault
    expected = own(folders["experts_apart"])
    change = (logits - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert change.median() < 0.01
