"""What engines are promised for the families that people deploy, they load with our logits."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import quantkit
from quantkit.core.errors import RefusedError
from quantkit.grid import activation
from quantkit.model.open import open_model
from tests.engines.conftest import ROOT, TOKENS, int8_rounded, interpreter
from tests.float_forms import as_gpt_oss, rewrite

pytestmark = pytest.mark.long
FAMILIES = (
    *("deepseek_v3", "gemma3", "gemma4_text", "glm4_moe", "gpt_oss", "jamba", "llama4"),
    *("mixtral", "nemotron_h", "qwen2_5_vl", "qwen3_moe", "qwen3_next"),
)
RECIPES: dict[str, dict[str, Any]] = {
    "rtn": {"method": "rtn", "format": "compressed-tensors"},
    "gptq": {"method": "gptq", "format": "gptq"},
    "gptq-ct": {"method": "gptq", "format": "compressed-tensors"},
    "awq": {"method": "awq", "format": "awq"},
    "smoothquant": {"method": "smoothquant"},
    "nf4": {"method": "nf4"},
}
EXCEPTIONS: dict[str, dict[str, Any]] = {
    "gptq-but-one": {
        "method": "gptq",
        "format": "gptq",
        "settings": ["allow_partial=true", "overrides=[{match: '*.0.*.o_proj', skip: true}]"],
    },
    "rtn-two": {
        "method": "rtn",
        "format": "compressed-tensors",
        "settings": ["overrides=[{match: '*.down_proj', bits: 8}]"],
    },
}
"""Of linears that configs list by their full names, which differ between files and models."""
RENAMED = ("gemma3", "qwen2_5_vl")
GROUPED = ("rtn", "gptq", "gptq-ct", "awq", *EXCEPTIONS)
DRAFT = "model.layers.2."
"""The draft layer of two; transformers knows its number in the published model, 61."""
OFF = {"nf4": 0.1, "transformers": 0.01, "gptqmodel": 0.02}
"""Median relative error of a token's logits: bitsandbytes computes in bf16, GPTQModel in fp16."""


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every family with every recipe that its formats hold: `family+recipe` -> folder."""
    interpreter("transformers")  # skips before any work
    root = tmp_path_factory.mktemp("families")
    found = {}
    for family in FAMILIES:
        source = source_of(family, root / family / "source")
        recipes = RECIPES | (EXCEPTIONS if family in RENAMED else {})
        for name, recipe in recipes.items():
            out = root / family / name
            size: dict[str, Any] = {"group_size": 32} if name in GROUPED else {}
            wanted = quantkit.build_recipe(None, samples=2, sequence_length=32, **size, **recipe)
            try:
                quantkit.quantize(str(source), out, recipe=wanted, evaluate=False)
            except RefusedError:  # a format has no room for 548 outputs, say
                continue
            found[f"{family}+{name}"] = out
    return found


def source_of(family: str, folder: Path) -> Path:
    """A tiny model in fp32; gpt-oss and DeepSeek-V3 as they are published."""
    sys.path.insert(0, str(ROOT))
    try:
        from benchmarks import tiny
    finally:
        sys.path.remove(str(ROOT))
    folder.mkdir(parents=True)
    tiny.make(family, tiny.identifiers()[family], folder)
    weights = folder / "model.safetensors"
    tensors = {n: t.float() if t.is_floating_point() else t for n, t in load_file(weights).items()}
    if family == "deepseek_v3":
        tensors |= dict(draft_layer(tensors))
    save_file(tensors, weights, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(in_fp32(config)))
    if family == "deepseek_v3":
        rewrite(folder, "fp8_block")
    if family == "gpt_oss":
        as_gpt_oss(folder)
    return folder


def draft_layer(tensors: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """A layer after the last one for multi-token prediction, as DeepSeek-V3 names it."""
    last = max(int(n.split(".")[2]) for n in tensors if n.startswith("model.layers."))
    for name, tensor in tensors.items():
        if name.startswith(f"model.layers.{last}."):
            yield name.replace(f".{last}.", f".{last + 1}.", 1), tensor.clone()
    norm = tensors["model.norm.weight"]
    yield f"model.layers.{last + 1}.enorm.weight", norm.clone()
    yield f"model.layers.{last + 1}.eh_proj.weight", torch.randn(len(norm), 2 * len(norm))


def in_fp32(config: dict[str, Any]) -> dict[str, Any]:
    """The config of the same model in fp32, its parts included."""
    found = {key: in_fp32(v) if isinstance(v, dict) else v for key, v in config.items()}
    return found | {key: "float32" for key in ("dtype", "torch_dtype") if key in config}


def own(folder: Path) -> torch.Tensor:
    """Logits of our own decode, fp32 (sequences, length, vocabulary)."""
    model = open_model(folder)
    head = model.head()
    return torch.stack([head(rows) for rows in model.hidden_states(torch.tensor(TOKENS))])


@pytest.mark.parametrize("engine", ["transformers", "gptqmodel"])
def test_what_is_promised_is_loaded_with_our_logits(
    artifacts: dict[str, Path],
    tmp_path: Path,
    run_script: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    engine: str,
) -> None:
    """transformers takes 127.5 levels for the activations of W8A8, vLLM and ours 127."""
    promised = {}
    for name, folder in artifacts.items():
        manifest = json.loads((folder / "quantkit.json").read_text())
        if manifest["engines"][engine] is None:
            promised[name] = folder
    if engine == "transformers":
        assert {f"{f}+{name}" for f in RENAMED for name in EXCEPTIONS} <= promised.keys()
    job = {"engine": engine, "artifacts": {n: str(p) for n, p in promised.items()}}
    (tmp_path / "job.json").write_text(json.dumps(job | {"tokens": TOKENS}))
    run_script("transformers", "predict.py", str(tmp_path / "job.json"))
    levels = {**activation.TOKENS, "int8-token": lambda x: int8_rounded(x, 127.5)}
    monkeypatch.setattr(activation, "TOKENS", levels)
    faults = {}
    for name, folder in promised.items():
        answer = json.loads((tmp_path / f"{name}.json").read_text())
        logits = load_file(tmp_path / f"{name}.safetensors")["logits"]
        odd = [key for key in answer.get("keys", ()) if not key.startswith(DRAFT)]
        if fault := answer["error"] or " ".join(odd):
            faults[name] = fault[:300]
            continue
        expected = own(folder)
        off = ((logits - expected).norm(dim=-1) / expected.norm(dim=-1)).median()
        if off > OFF.get(name.partition("+")[2], OFF[engine]):
            faults[name] = f"median error {off:.3f}"
    assert not faults
    families = {name.partition("+")[0] for name in promised}
    assert families >= (
        {"deepseek_v3", "qwen3_moe"}
        if engine == "gptqmodel"
        else set(FAMILIES) - {"gpt_oss", "llama4"}
    )


def test_draft_layers_are_copied_and_named(artifacts: dict[str, Path]) -> None:
    manifest = json.loads((artifacts["deepseek_v3+gptq"] / "quantkit.json").read_text())
    assert any("does not use them" in remark for remark in manifest["remarks"])
    drafts = {n: what for n, what in manifest["tensors"].items() if ".enorm." in n}
    assert set(drafts.values()) == {"copied"}
