"""Forwards that are replayed up to each group give the bytes of those that wait there."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from quantkit.checkpoint.writer import ArtifactWriter
from quantkit.core.resources import OFFLOADED, PAUSED, REPLAYED, SPILLED, Holding
from quantkit.model.open import open_model
from quantkit.pipeline.build import build
from quantkit.pipeline.prepare import Prepared
from quantkit.pipeline.start import start
from quantkit.pipeline.write import planned_tensors
from quantkit.recipes.loader import build_recipe
from quantkit.runs.forecast import plan_prepared, ways

SHARD = 1 << 30
ALL = "calibration.experts=all"
COMPENSATE = "calibration.compensate=true"
IDS = torch.randint(2, 250, (9, 500), generator=torch.Generator().manual_seed(0))
METHODS = ("gptq", "awq", "smoothquant", "nf4", "rtn")
CASES: list[tuple[str, str, list[str]]] = [
    *(("llama", method, []) for method in METHODS),
    *(("experts_fused", method, []) for method in METHODS),
    ("experts_fused", "gptq", [ALL]),
    ("llama", "gptq", [COMPENSATE]),
    ("llama", "fp8kv", []),
    ("hybrid", "w4a16-fp8kv", []),
    ("llama", "w4a16-fp8kv", [COMPENSATE]),
    ("experts_apart", "awq", [COMPENSATE]),
    ("hybrid", "gptq-compressed", [COMPENSATE]),
    ("experts_apart", "smoothquant", [ALL]),
    ("hybrid", "gptq-compressed", []),
    ("gemma3", "awq", []),
    ("gpt2", "gptq", []),
]


def prepared_for(folder: Path, recipe: str, settings: list[str]) -> Prepared:
    wanted = build_recipe(recipe, samples=4, settings=["allow_partial=true", *settings])
    return start(open_model(folder), wanted)


def made(prepared: Prepared, folder: Path, holding: Holding) -> dict[str, str]:
    """SHA-256 of the files of an artifact that is made in this way."""
    plan = plan_prepared(prepared, tuple(IDS.shape), SHARD, holding)
    specs = planned_tensors(prepared.model, plan.schemes, prepared.format, prepared.cache)
    with ArtifactWriter(folder, specs, SHARD) as writer:
        built = build(replace(prepared, plan=plan), writer, IDS)
        assert {record.name for record in built.modules} == set(plan.schemes)
        return {
            file.name: hashlib.sha256(file.read_bytes()).hexdigest()
            for file in writer.folder.iterdir()
        }


@pytest.mark.parametrize(("family", "recipe", "settings"), CASES)
def test_the_bytes_are_those_of_forwards_that_wait(
    tiny_checkpoint: Callable[..., Path],
    tmp_path: Path,
    family: str,
    recipe: str,
    settings: list[str],
) -> None:
    prepared = prepared_for(tiny_checkpoint(family, dtype="bfloat16"), recipe, settings)
    waiting = made(prepared, tmp_path / "waiting", PAUSED)
    assert "model.safetensors" in waiting
    assert made(prepared, tmp_path / "replayed", REPLAYED) == waiting
    assert made(prepared, tmp_path / "spilled", SPILLED) == waiting


def test_replays_take_the_forwards_that_are_planned(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepared_for(tiny_checkpoint("llama", dtype="bfloat16"), "rtn", [])
    products = {PAUSED: 0, REPLAYED: 0}
    forward: Any = nn.Linear.forward
    for holding in products:

        def counted(self: nn.Linear, x: torch.Tensor, holding: Holding = holding) -> torch.Tensor:
            products[holding] += x.numel() * self.out_features
            return forward(self, x)  # type: ignore[no-any-return]  # torch's own

        monkeypatch.setattr(nn.Linear, "forward", counted)
        made(prepared, tmp_path / str(holding), holding)
    memory = plan_prepared(prepared, tuple(IDS.shape), SHARD, REPLAYED).memory
    assert memory is not None
    assert products[REPLAYED] / products[PAUSED] == pytest.approx(memory.forwards)
    assert 1.5 < memory.forwards < 2.5


def test_what_is_called_again_is_not_replayed(tiny_checkpoint: Callable[..., Path]) -> None:
    prepared = prepared_for(tiny_checkpoint("llama"), "rtn", [])
    assert ways(prepared, (4, 64)) == (PAUSED, REPLAYED, SPILLED)
    assert ways(prepared, (4, 64), ranks=2) == (PAUSED, REPLAYED)
    assert ways(prepared, (0, 0)) == (PAUSED,)
    there = replace(prepared, model=replace(prepared.model, device=torch.device("cuda")))
    assert ways(there, (4, 64)) == (PAUSED, REPLAYED, OFFLOADED)
    kind, *others = prepared.structure.kinds
    again = replace(kind, groups=(replace(kind.groups[0], calls=2), *kind.groups[1:]))
    structure = replace(prepared.structure, kinds=(again, *others))
    assert ways(replace(there, structure=structure), (4, 64)) == (PAUSED,)
