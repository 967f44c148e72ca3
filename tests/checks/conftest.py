"""Sound artifacts of every format, and ways to plant one fault in a copy."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pytest
import torch
from safetensors.torch import load_file, save_file

import quantkit
from quantkit.core.check import Verification
from quantkit.recipes.loader import build_recipe

Tensors = dict[str, torch.Tensor]
WEIGHTS = "model.safetensors"
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "gptq": ("rtn", {"bits": 4, "group_size": 32}),
    "gptq_w8": ("rtn", {"bits": 8, "group_size": 64}),
    "gptq_v2": ("rtn", {"bits": 4, "group_size": 32, "format": "gptq-v2", "symmetric": False}),
    "awq": ("rtn", {"bits": 4, "group_size": 32, "format": "awq", "symmetric": False}),
    "pack": ("rtn", {"bits": 4, "group_size": 32, "format": "compressed-tensors"}),
    "pack_asym": (
        "rtn",
        {"bits": 4, "group_size": 32, "format": "compressed-tensors", "symmetric": False},
    ),
    "w8a8": ("smoothquant", {}),
    "fp8": ("fp8", {}),
    "fp8_block": ("fp8-block", {}),
    "mxfp4": ("mxfp4", {}),
    "nvfp4": ("nvfp4-w4a16", {}),
    "nf4": ("nf4", {}),
    "nf4_double": ("nf4-double", {}),
    "awq_method": ("awq", {"group_size": 32}),
    "gptq_method": ("gptq", {"group_size": 32}),
    "compensated": (
        "gptq",
        {"group_size": 32, "bits": 3, "settings": ["calibration.compensate=true"]},
    ),
    "modelopt": ("fp8-static", {"format": "modelopt"}),
}
"""Name -> recipe or method, and its flags."""


class Made(Protocol):
    """The folder of an artifact; see `made`."""

    def __call__(self, form: str, family: str = "llama", *, shards: int = 1) -> Path: ...


@pytest.fixture(scope="session")
def sources(tiny_checkpoint_cache: Callable[..., Path]) -> Callable[[str], Path]:
    """The model that the artifacts of a family are made of."""
    return lambda family: tiny_checkpoint_cache(family, dtype="bfloat16", seed=3)


@pytest.fixture(scope="session")
def made(made_once: Callable[..., Path], sources: Callable[[str], Path]) -> Made:
    """A sound artifact by its form, shared by all tests."""

    def make(form: str, family: str = "llama", *, shards: int = 1) -> Path:
        def build(folder: Path) -> None:
            name, flags = FORMS[form]
            flags = {"samples": 4, "sequence_length": 64, **flags}
            recipe = build_recipe(name, **flags)
            size = 10**9 if shards == 1 else 200_000
            quantkit.quantize(
                str(sources(family)), folder, recipe=recipe, evaluate=False, max_shard_size=size
            )

        return made_once(f"{form}-{family}-{shards}", build)

    return make


class Folder:
    """A private copy of an artifact, in which faults are planted."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def tensors(self, name: str = WEIGHTS) -> Tensors:
        """All tensors of a file."""
        return load_file(self.path / name)

    def store(self, tensors: Tensors, name: str = WEIGHTS) -> None:
        """Write a file again."""
        whole = {key: tensor.contiguous() for key, tensor in tensors.items()}
        save_file(whole, self.path / name, {"format": "pt"})

    def change(self, name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Put something else in the place of one tensor."""
        tensors = self.tensors()
        tensors[name] = change(tensors[name].clone())
        self.store(tensors)

    def json(self, name: str, change: Callable[[Any], Any]) -> None:
        """Change what a JSON file says; `change` may return another document."""
        document = json.loads((self.path / name).read_text())
        document = change(document) or document
        (self.path / name).write_text(json.dumps(document))

    def block(self, **fields: Any) -> None:
        """Set fields of the quantization config."""
        self.json("config.json", lambda config: config["quantization_config"].update(fields))

    def foreign(self) -> "Folder":
        """The same without what only quantkit writes: hashes and manifest."""
        for name in ("quantkit.json", "SHA256SUMS"):
            (self.path / name).unlink(missing_ok=True)
        return self


@pytest.fixture
def copied(made: Made, tmp_path: Path) -> Callable[..., Folder]:
    """A copy of an artifact: `copied("awq")`."""

    def copy(form: str, family: str = "llama", *, shards: int = 1) -> Folder:
        return Folder(shutil.copytree(made(form, family, shards=shards), tmp_path / form))

    return copy


def codes(folder: Folder, **options: Any) -> list[tuple[str, str]]:
    """Code and path of each problem."""
    return [(p.code, p.path) for p in verified(folder, **options).problems]


def verified(folder: Folder, **options: Any) -> Verification:
    """What `verify` finds."""
    return quantkit.verify(folder.path, **options)
