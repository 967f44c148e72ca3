"""Ways to run the command: in this process, and as the child that a user starts."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from quantkit.cli.main import run

LLAMA_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 131072,
}
"""The config of a model of 8e9 parameters."""

Outcome = tuple[int, str, str]


@pytest.fixture
def quantkit(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Exit code, stdout and stderr of a command line."""

    def call(*arguments: str) -> Outcome:
        code = run(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def llama(tmp_path: Path) -> str:
    """The config.json of a model of 8e9 parameters."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA_8B))
    return str(path)


@pytest.fixture
def child(tmp_path: Path) -> Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]:
    """A Python process with these arguments, away from the checkout."""

    def call(arguments: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, *arguments], capture_output=True, text=True, cwd=tmp_path, check=False
        )

    return call
