"""A folder to spoil, a command line to run on it, and what must come of that."""

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

EVAL = ("eval", "model", "--sequence-length", "32", "--windows", "1")
GENERATE = ("generate", "model", "Once", "--max-new-tokens", "2")
PLAN = ("plan", "model")
QUANTIZE = (
    *("quantize", "model", "-o", "out", "--method", "rtn"),
    *("--samples", "1", "--sequence-length", "32"),
)
FIT = ("fit", "model", "-o", "out", "--size", "1MB")
VERIFY = ("verify", "model", "--json")
"""What it finds is its result, and no error."""
READERS = {"eval": EVAL, "generate": GENERATE, "quantize": QUANTIZE}
"""The verbs that read weights."""


@dataclass(frozen=True)
class Scene:
    """`home` is where the command runs, `model` a folder in it that the case may spoil."""

    home: Path

    @property
    def model(self) -> Path:
        """The model's folder."""
        return self.home / "model"

    def config(self, **changes: Any) -> None:
        """Change fields of config.json; None removes one."""
        self.json("config.json", **changes)

    def json(self, name: str, **changes: Any) -> None:
        """Change fields of a JSON file of the model."""
        path = self.model / name
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        found = {k: v for k, v in (found | changes).items() if v is not None}
        path.write_text(json.dumps(found), encoding="utf-8")

    def write(self, name: str, data: str | bytes) -> None:
        """A file in the model's folder."""
        (self.model / name).write_bytes(data.encode() if isinstance(data, str) else data)

    def beside(self, name: str, data: str | bytes) -> str:
        """A file beside the model's folder; its name."""
        (self.home / name).write_bytes(data.encode() if isinstance(data, str) else data)
        return name

    def tensors(self, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
        """Change the weights in place, by name."""
        path = self.model / "model.safetensors"
        found = load_file(path)
        change(found)
        made = {name: tensor.contiguous() for name, tensor in found.items()}
        save_file(made, path, metadata={"format": "pt"})

    def cast(self, part: str, dtype: torch.dtype) -> None:
        """Store the tensors with `part` in their name in another dtype."""

        def change(found: dict[str, torch.Tensor]) -> None:
            for name in [name for name in found if part in name]:
                wide = found[name].float()
                found[name] = (
                    (wide * 100).to(dtype) if not dtype.is_floating_point else wide.to(dtype)
                )

        self.tensors(change)

    def put(self, name: str, tensor: torch.Tensor) -> None:
        """Add a tensor to the weights."""
        self.tensors(lambda found: found.update({name: tensor}))

    def header(self, header: Any, data: bytes = b"") -> None:
        """Write a weight file with this header: an object, or bytes as they are."""
        raw = header if isinstance(header, bytes) else json.dumps(header).encode()
        self.write("model.safetensors", struct.pack("<Q", len(raw)) + raw + data)


@dataclass(frozen=True)
class Case:
    """What spoils a scene, the command line, the exit codes that may come, and words that must.

    `spoil` may return a command line of its own.
    """

    spoil: Callable[[Scene], Sequence[str] | None]
    argv: Sequence[str] = EVAL
    codes: tuple[int, ...] = (2, 4, 6)
    says: tuple[str, ...] = ("model",)


def cases(
    table: Mapping[str, tuple[Any, ...]], verbs: Mapping[str, Sequence[str]] | None = None
) -> dict[str, Case]:
    """A case for each row (spoil, codes, words) and verb, by row and verb."""
    found = {}
    for name, (spoil, codes, *says) in table.items():
        for verb, argv in (verbs or {"eval": EVAL}).items():
            found[f"{name}-{verb}"] = Case(spoil, argv, codes, tuple(says))
    return found


def parameters(found: Mapping[str, Case]) -> list[Any]:
    """The names of cases, of which `make unit` runs every third."""
    return [
        pytest.param(name, marks=[pytest.mark.long] * bool(index % 3))
        for index, name in enumerate(found)
    ]
