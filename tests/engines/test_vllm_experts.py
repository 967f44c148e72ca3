"""Quantized experts in vLLM's CPU build, against our own decode.

It has kernels for them on processors with AMX only: 4 bits, whose activations it rounds to 8, and
W8A8; both where a softmax chooses the experts. W8A8 does not run in fp16 there (`test_vllm.py`).
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

import quantkit
from quantkit.core.recipe import Override
from tests.engines.conftest import TOKENS
from tests.engines.test_families import own, source_of

W4: dict[str, Any] = {"method": "rtn", "group_size": 64}
LEFT = (Override("model.layers.1.mlp.experts.*", skip=True),)
"""The experts of a block, left dense in all that are called so."""
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gptq-left": ("qwen3_moe", W4 | {"format": "gptq"}),
    "awq-left": ("qwen3_moe", W4 | {"format": "awq", "symmetric": False}),
    "ct": ("qwen3_moe", W4 | {"format": "compressed-tensors"}),
    "ct-renamed": ("mixtral", W4 | {"format": "compressed-tensors"}),
}
AMX = "amx_int8" in Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
MOST = 0.04
"""Median relative error of a token's log-probabilities; those of the original are 0.3 off."""


def test_predicts_what_our_own_decode_predicts(
    engine_python: Callable[[str], str],
    run_script: Callable[[str, str, str], None],
    tmp_path: Path,
) -> None:
    engine_python("vllm")  # skips before any work
    families = {family for family, _ in CASES.values()}
    sources = {family: source_of(family, tmp_path / family) for family in families}
    folders = {}
    for name, (family, recipe) in CASES.items():
        wanted = quantkit.build_recipe(None, samples=0, **recipe)
        if name.endswith("left"):
            wanted = replace(wanted, overrides=LEFT, allow_partial=True)
        out = tmp_path / name
        result = quantkit.quantize(str(sources[family]), out, recipe=wanted, evaluate=False)
        assert result.engines["vllm"] is None
        folders[name] = str(out)
    job = {"engine": "vllm", "artifacts": folders, "tokens": TOKENS}
    (tmp_path / "job.json").write_text(json.dumps(job))
    run_script("vllm", "predict.py", str(tmp_path / "job.json"))
    for name, folder in folders.items():
        error = json.loads((tmp_path / f"{name}.json").read_text())["error"]
        if not AMX:
            assert "MoE backend" in error, name  # all is read but the experts, which have no kernel
            continue
        assert not error, name
        found = load_file(tmp_path / f"{name}.safetensors")["logits"]
        expected = own(Path(folder)).log_softmax(-1)[:, :-1]
        spread = expected - expected.mean(-1, keepdim=True)
        change = (found - expected).norm(dim=-1) / spread.norm(dim=-1)
        assert change.median() < MOST, (name, change.median())
