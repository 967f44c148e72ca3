"""Sources in floats are read as the tools that write them read them."""

import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file

from quantkit.model.open import open_model
from tests.engines.conftest import TOKENS, interpreter
from tests.float_forms import rewrite

COMPRESSED = ("fp8_channel", "mxfp4", "nvfp4")
"""Layouts of compressed-tensors."""


def test_compressed_tensors_decodes_to_the_same_logits(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path, run_script: Callable[..., None]
) -> None:
    """It decodes to bf16 or fp32 by form; ours is rounded to the model's bf16, so they differ."""
    interpreter("transformers")  # skips before any work
    folders = {}
    for form in COMPRESSED:
        folders[form] = tiny_checkpoint("llama", private=True, dtype="bfloat16")
        rewrite(folders[form], form)
    job = {
        "engine": "transformers_bf16",
        "artifacts": {name: str(path) for name, path in folders.items()},
        "tokens": TOKENS,
    }
    (tmp_path / "job.json").write_text(json.dumps(job))
    run_script("transformers", "predict.py", str(tmp_path / "job.json"))
    for form, folder in folders.items():
        answer = json.loads((tmp_path / f"{form}.json").read_text())
        assert not answer["error"], (form, answer["error"])
        found = load_file(tmp_path / f"{form}.safetensors")["logits"]
        model = open_model(folder)
        head = model.head()
        expected = torch.stack([head(r) for r in model.hidden_states(torch.tensor(TOKENS))])
        assert (found - expected).norm() < 0.02 * expected.norm(), form
