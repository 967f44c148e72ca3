"""What a limit of GPU memory does: the way that a run takes, what it holds, and what is refused."""

import gc
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import quantkit
from quantkit.checkpoint.sizes import parse_size
from quantkit.core.errors import InputError, ResourceError
from quantkit.core.figure import Figure
from quantkit.core.plan import Plan
from quantkit.core.resources import OFFLOADED, PAUSED, REPLAYED, Holding, Memory
from quantkit.model.open import open_model
from quantkit.pipeline.start import start
from quantkit.recipes.loader import build_recipe
from quantkit.runs.ceiling import Ceiling
from quantkit.runs.forecast import plan_prepared, plan_within, require_memory, what_fits
from tests.conftest import TinyCheckpoint
from tests.device.pretended import held_bytes, peak_bytes, pretended
from tests.device.shapes import LLAMA_8B, prepared_for, run_blocks, write_models
from tests.device.test_device import DEVICE, hashes

SHARD = 5 * 10**9
CASES = [
    ("rtn", 20, PAUSED),
    ("gptq", 12, REPLAYED),
    ("nf4", 12, REPLAYED),
    ("smoothquant", 4, OFFLOADED),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("8b")
    write_models(made, **LLAMA_8B)
    return made


@pytest.mark.long
@pytest.mark.parametrize(("recipe", "limit", "way"), CASES)
def test_128_windows_of_an_8b_stay_under_the_limit_as_planned(
    folder: Path, recipe: str, limit: int, way: Holding
) -> None:
    limit *= 1 << 30
    prepared = prepared_for(folder, recipe)
    plan = plan_within(Ceiling(DEVICE, None, limit), prepared, (128, 2048), SHARD)
    assert plan.memory is not None
    assert plan.memory.holding == way
    assert plan.memory.forwards <= 2.1
    _, held = run_blocks(prepared, 128, 2048, way, most=limit)
    assert held < limit
    assert 1 <= plan.memory.peak.bytes / held < 1.05


@pytest.mark.long
def test_the_original_model_beside_is_planned(tmp_path: Path) -> None:
    write_models(tmp_path, blocks=3, **LLAMA_8B)  # in the first, hidden states are those of both
    prepared = prepared_for(tmp_path, "rtn", samples=24, settings=["calibration.compensate=true"])
    plan = plan_prepared(prepared, (24, 2048), SHARD)
    assert plan.memory is not None
    _, held = run_blocks(prepared, 24, 2048, PAUSED)
    assert 1 <= plan.memory.peak.bytes / held < 1.05


@pytest.mark.long
def test_a_limit_changes_no_byte(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    source = str(tiny_checkpoint("llama", dtype="bfloat16"))
    recipe = build_recipe("gptq", samples=64, sequence_length=256)
    given: Any = {"recipe": recipe, "device": DEVICE, "evaluate": False}

    def peak(output: str, **limits: Any) -> int:
        with pretended():
            gc.collect()  # what tests before it left would be given back meanwhile
            before = held_bytes()
            quantkit.quantize(source, tmp_path / output, **given, **limits)
            return peak_bytes() - before

    free = peak("free")
    most = free * 2 // 3
    assert peak("bound", max_vram=most) < most
    assert hashes(tmp_path / "bound") == hashes(tmp_path / "free")
    files = [tmp_path / name / "quantkit.json" for name in ("free", "bound")]
    manifests = [json.loads(file.read_text()) for file in files]
    for each in manifests:
        del each["planned"], each["measured"]
    assert manifests[0] == manifests[1]


def test_what_is_refused_is_told_what_fits(tiny_checkpoint: TinyCheckpoint) -> None:
    prepared = start(open_model(tiny_checkpoint("llama", dtype="bfloat16")), build_recipe("gptq"))
    with pretended():
        prepared = replace(prepared, model=replace(prepared.model, device=torch.device(DEVICE)))

    def planned(windows: int, limit: int) -> tuple[Plan, Ceiling]:
        ceiling = Ceiling(DEVICE, None, limit)
        return plan_within(ceiling, prepared, (windows, 256), SHARD), ceiling

    def fits(windows: int, limit: int) -> bool:
        plan, ceiling = planned(windows, limit)
        return ceiling.holds(plan)

    least, most = (ceiling.whole(plan) for plan, ceiling in (planned(1, 1), planned(400, 1)))
    limit = (least + most) // 2
    plan, ceiling = planned(400, limit)
    remedy = partial(what_fits, plan, ceiling, prepared, (400, 256), SHARD)
    with pytest.raises(ResourceError, match="--max-vram allows") as refused:
        require_memory(plan, ceiling, remedy)
    assert refused.value.exit_code == 5
    samples, size = (part.split()[1] for part in refused.value.hint.split(" or "))
    assert fits(int(samples), limit)
    assert not fits(int(samples) + 1, limit)
    assert fits(400, parse_size(size))
    assert not fits(400, parse_size(size) - 10**7)


@pytest.mark.parametrize(
    ("device", "limits", "remedy"),
    [
        ("cpu", {"max_vram": "8GB"}, "--max-ram 8GB"),
        (DEVICE, {"max_ram": "8GB"}, "--max-vram 8GB"),
        (DEVICE, {"max_vram": "8"}, "--max-vram 8GB"),
    ],
)
def test_limits_belong_to_their_devices(
    tmp_path: Path, device: str, limits: Any, remedy: str
) -> None:
    with pretended(), pytest.raises(InputError) as refused:
        quantkit.quantize(str(tmp_path), tmp_path / "out", device=device, **limits)
    assert refused.value.hint == remedy


def test_a_limit_counts_what_an_allocator_keeps() -> None:
    plan = Plan(memory=Memory((Figure("solving", 100, ""),), base_bytes=50))
    gpu = Ceiling("cuda:0", None, 105, ranks=4)
    assert not gpu.holds(plan)
    assert replace(gpu, limit=110).holds(plan)
    assert replace(gpu, limit=None, free=99).holds(plan, 1.1)
    assert not replace(gpu, limit=None, free=99).holds(plan)
    assert Ceiling("cpu", None, None, ranks=4).whole(plan) == 630  # 1.05 of four processes
