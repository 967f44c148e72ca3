"""What a limit of GPU memory does: the way that a run takes, what it holds, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import quantkit
from quantkit.core.errors import InputError, ResourceError
from quantkit.core.figure import Figure
from quantkit.core.plan import Plan
from quantkit.core.resources import OFFLOADED, PAUSED, REPLAYED, Memory
from quantkit.recipes.loader import build_recipe
from quantkit.runs.ceiling import Ceiling
from quantkit.runs.forecast import plan_within
from tests.conftest import TinyCheckpoint
from tests.device.pretended import held_bytes, peak_bytes, pretended
from tests.device.shapes import LLAMA_8B, prepared_for, run_blocks, write_models
from tests.device.test_device import DEVICE, hashes

GIB = 1 << 30
SHARD = 5 * 10**9
WIDE: Any = {"hidden_size": 512, "intermediate_size": 1536, "num_attention_heads": 16}
CASES = [
    ("gptq", 24 * GIB, PAUSED),
    ("gptq", 12 * GIB, REPLAYED),
    ("gptq", 7 * GIB, OFFLOADED),
    ("awq", 12 * GIB, REPLAYED),
    ("awq", 7 * GIB, OFFLOADED),
    ("smoothquant", 12 * GIB, REPLAYED),
    ("nf4", 12 * GIB, REPLAYED),
    ("rtn", 12 * GIB, REPLAYED),
    ("rtn", 5 * GIB, OFFLOADED),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("8b")
    write_models(made, **LLAMA_8B)
    return made


@pytest.mark.long
@pytest.mark.parametrize(("recipe", "limit", "way"), CASES)
def test_128_windows_of_an_8b_stay_under_the_limit_as_planned(
    folder: Path, recipe: str, limit: int, way: Any
) -> None:
    prepared = prepared_for(folder, recipe)
    plan = plan_within(Ceiling(DEVICE, None, limit), prepared, (128, 2048), SHARD)
    assert plan.memory is not None
    assert plan.memory.holding == way
    assert plan.memory.forwards <= 2.1
    _, held = run_blocks(prepared, 128, 2048, way, most=limit)
    print(f"{recipe} {limit / GIB:.0f} GiB {way}: {plan.memory.peak.bytes:,} {held:,}")
    assert held < limit
    assert 1 <= plan.memory.peak.bytes / held < 1.05


def test_a_limit_changes_no_byte(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    source = str(tiny_checkpoint("llama", dtype="bfloat16", **WIDE))
    recipe = build_recipe("gptq", samples=64, sequence_length=256)
    given: Any = {"recipe": recipe, "device": DEVICE, "evaluate": False}

    def peak(output: str, **limits: Any) -> int:
        with pretended():
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


def test_what_does_not_fit_is_refused_with_what_would(
    tiny_checkpoint: TinyCheckpoint, tmp_path: Path
) -> None:
    source = str(tiny_checkpoint("llama", dtype="bfloat16", **WIDE))

    def recipe(samples: int) -> Any:
        return build_recipe("gptq", samples=samples, sequence_length=256)

    def plan(samples: int, **limits: Any) -> Any:
        return quantkit.dry_run(source, recipe=recipe(samples), device=DEVICE, **limits)

    with pretended():
        least, most = (plan(n).memory.peak.bytes for n in (1, 400))
        limit = (7 * least + most) // 8
        with pytest.raises(ResourceError, match="--max-vram allows") as refused:
            quantkit.quantize(
                source, tmp_path / "out", recipe=recipe(400), device=DEVICE, max_vram=limit
            )
        assert refused.value.exit_code == 5
        assert not (tmp_path / "out").exists()
        samples, size = (part.split()[1] for part in refused.value.hint.split(" or "))
        told = plan(400, max_vram=limit).remarks[-1]
        assert told == f"{refused.value.what}; try: {refused.value.hint}"
        assert "try:" not in "".join(plan(int(samples), max_vram=limit).remarks)
        assert "try:" in plan(int(samples) + 1, max_vram=limit).remarks[-1]
        assert "try:" not in "".join(plan(400, max_vram=size).remarks)


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
    assert Ceiling("cpu", None, None, ranks=4).whole(plan) == 612  # 1.02 of four processes
