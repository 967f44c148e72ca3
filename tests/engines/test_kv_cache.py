"""The scales of a KV cache in engines, against what quantkit makes of the same files.

Scales of a 32nd clip nearly all keys and values, so that an engine that ignores them is far off.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from quantkit.checkpoint.writer import ArtifactWriter
from quantkit.core import registry
from quantkit.core.engine import Engine
from quantkit.model.open import open_model
from quantkit.model.opened import load_dense
from quantkit.pipeline.build import build
from quantkit.pipeline.start import start
from quantkit.pipeline.write import planned_tensors
from quantkit.recipes.loader import build_recipe
from tests.conftest import TinyCheckpoint
from tests.engines.conftest import TOKENS, interpreter

IDS = torch.randint(2, 250, (4, 64), generator=torch.Generator().manual_seed(0))


def artifact_of(source: Path, folder: Path, recipe: str, factor: float = 1.0) -> Path:
    """An artifact, with scales that were changed by a factor after it was made."""
    prepared = start(open_model(source), build_recipe(recipe, samples=4))
    specs = planned_tensors(prepared.model, prepared.plan.schemes, prepared.format, prepared.cache)
    with ArtifactWriter(folder, specs, 1 << 30) as writer:
        build(prepared, writer, IDS)
        writer.publish()
    file = folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    for name in tensors:
        if name.endswith((".k_scale", ".v_scale")):
            tensors[name] *= factor
    save_file(tensors, file, metadata={"format": "pt"})
    return folder


def own_logits(folder: Path, *, cached: bool = True) -> torch.Tensor:
    """fp32 logits of an artifact, with its cache rounded or not."""
    model = replace(open_model(folder), dtype=torch.float32)
    model = model if cached else replace(model, cache={})
    with torch.no_grad():
        logits: torch.Tensor = load_dense(model).eval()(torch.tensor(TOKENS)).logits.float()
    return logits


def answers(
    engine: str, folders: dict[str, Path], run_script: Callable[..., None], folder: Path
) -> dict[str, torch.Tensor]:
    """What an engine predicts of each artifact."""
    job = {"engine": engine, "artifacts": {n: str(f) for n, f in folders.items()}, "tokens": TOKENS}
    (folder / "job.json").write_text(json.dumps(job))
    run_script(engine, "predict.py", str(folder / "job.json"))
    for name in folders:
        told = json.loads((folder / f"{name}.json").read_text())
        assert (told["error"], told.get("keys", [])) == ("", [])
    return {name: load_file(folder / f"{name}.safetensors")["logits"] for name in folders}


@pytest.mark.parametrize("recipe", ["fp8kv", "w4a16-fp8kv"])
def test_transformers_rounds_as_we_do_bit_for_bit(
    tiny_checkpoint: TinyCheckpoint,
    run_script: Callable[..., None],
    tmp_path: Path,
    recipe: str,
) -> None:
    interpreter("transformers")  # skips before any work
    source = tiny_checkpoint("llama", dtype="bfloat16")
    folders = {
        name: artifact_of(source, tmp_path / name, recipe, factor)
        for name, factor in (("found", 1.0), ("small", 2.0**-5))
    }
    found = answers("transformers", folders, run_script, tmp_path)
    for name, folder in folders.items():
        assert torch.equal(found[name], own_logits(folder))
        assert not torch.equal(found[name], own_logits(folder, cached=False))


def test_vllm_applies_the_scales(
    tiny_checkpoint: TinyCheckpoint, run_script: Callable[..., None], tmp_path: Path
) -> None:
    interpreter("vllm")
    source = tiny_checkpoint("llama", dtype="bfloat16")
    small = artifact_of(source, tmp_path / "small", "fp8kv", 2.0**-5)
    folders = {"small": small, "found": artifact_of(source, tmp_path / "found", "fp8kv")}
    for name, logits in answers("vllm", folders, run_script, tmp_path).items():
        near, far = (
            (logits - own_logits(folders[name], cached=cached).log_softmax(-1)[:, :-1]).abs().mean()
            for cached in (True, False)
        )
        # it computes in fp16, and is further from us than e4m3 to nearest is from 16 bits
        assert near < 0.2
        assert name == "found" or near < far / 4


def test_the_engines_that_were_seen_to_are_those_listed() -> None:
    engines: list[Engine] = [
        registry.load("engines", n, "ENGINE") for n in registry.names("engines")
    ]
    assert {each.name for each in engines if each.kv_caches} == {"transformers", "vllm"}
