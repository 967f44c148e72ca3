"""Everything that computes does so on the device of the run, with the CPU's results."""

import gc
import hashlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import quantkit
from quantkit.bench.local import LocalResult, measure_local
from quantkit.bench.runtime import load_runtime
from quantkit.bench.timing import Cell, Effort, Run
from quantkit.core.recipe import CalibrationSpec, Recipe
from quantkit.core.scheme import Scheme
from quantkit.core.session import Session
from quantkit.methods import gptq
from quantkit.methods.gptq import GptqOptions
from quantkit.model.open import open_model
from quantkit.recipes.loader import build_recipe
from quantkit.stats.hessian import InputCollector
from tests.conftest import TinyCheckpoint
from tests.device.counts import Counts
from tests.device.pretended import (
    MixedDevicesError,
    Pretended,
    held_bytes,
    peak_bytes,
    pretended,
)
from tests.methods.solving import quantized

DEVICE = "pretended:0"
TRANSPOSED = ["rtn", "gptq", "gptq-v2-asym", "nf4", "nf4-double"]  # what holds Conv1D
DENSE = [*TRANSPOSED, "gptq-compressed", "awq", "smoothquant"]
CASES: list[tuple[str, str, dict[str, Any]]] = [
    *(("llama", recipe, {}) for recipe in (*DENSE, "awq-compressed", "w8a16")),
    *(("gemma3", recipe, {}) for recipe in DENSE),
    *(("gpt2", recipe, {}) for recipe in TRANSPOSED),
    *(("experts_apart", recipe, {"num_experts": 4}) for recipe in DENSE),
    ("hybrid", "gptq-compressed", {}),  # Mamba, attention, an MLP and experts, a block each
]


def short(name: str) -> Recipe:
    return build_recipe(name, samples=4, sequence_length=64)


def hashes(folder: Path) -> dict[str, str]:
    files = (*folder.glob("*.safetensors"), folder / "config.json")
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def test_the_device_has_a_gpus_rules() -> None:
    with pretended() as seen:
        there = torch.ones(3, device=DEVICE)
        assert isinstance(there, Pretended)
        assert there.device == torch.device(DEVICE)
        with pytest.raises(MixedDevicesError):
            there + torch.ones(3)
        with pytest.raises(MixedDevicesError):
            torch.ones(3)[there.long()]
        with pytest.raises(MixedDevicesError):
            torch.rand(3, device=DEVICE, generator=torch.Generator())
        assert torch.equal((there + torch.tensor(1.0)).cpu(), torch.full((3,), 2.0))
        assert torch.arange(4, device=DEVICE).shape == (4,)
        assert torch.eye(3, device=DEVICE).cpu().tolist() == torch.eye(3).tolist()
        there[1] = 5
        assert [float(x) for x in there] == [1, 5, 1]
        assert there[torch.tensor([1])].cpu().tolist() == [5]
    assert seen.launches.total() > 0
    assert seen.waits.total() == 6  # three numbers, three copies
    assert seen.to_host.total() == 3


@pytest.mark.long
@pytest.mark.parametrize(("family", "name", "config"), CASES, ids=[f"{c[0]}-{c[1]}" for c in CASES])
def test_artifacts_are_the_cpus(
    family: str, name: str, config: dict[str, Any], tiny_checkpoint: TinyCheckpoint, tmp_path: Path
) -> None:
    source = str(tiny_checkpoint(family, dtype="bfloat16", **config))
    recipe = short(name)
    quantkit.quantize(source, tmp_path / "cpu", recipe=recipe, evaluate=False, device="cpu")
    with pretended() as seen:
        quantkit.quantize(source, tmp_path / "there", recipe=recipe, evaluate=False, device=DEVICE)
    assert hashes(tmp_path / "there") == hashes(tmp_path / "cpu")
    assert seen.launches.total() > 0


def test_judging_and_generating_are_the_cpus(
    tiny_checkpoint: TinyCheckpoint, tmp_path: Path
) -> None:
    source = str(tiny_checkpoint("llama", dtype="bfloat16"))
    quantkit.quantize(source, tmp_path / "out", recipe=short("rtn"), evaluate=False, device="cpu")
    kept: Any = {"save_reference": tmp_path / "kept", "reference_form": "topk", "triage": True}

    def judged(device: str, reference: str, **further: Any) -> Any:
        out = str(tmp_path / "out")
        return quantkit.evaluate(out, reference=reference, windows=2, device=device, **further)

    said = quantkit.generate(source, "abc", max_new_tokens=4, device="cpu")
    found = judged("cpu", source)
    with pretended():
        assert quantkit.generate(source, "abc", max_new_tokens=4, device=DEVICE) == said
        there = judged(DEVICE, source, **kept)
        again = judged(DEVICE, str(tmp_path / "kept"))
    assert there.kl.mean == pytest.approx(found.kl.mean, rel=1e-6)
    assert there.perplexity.value == pytest.approx(found.perplexity.value, rel=1e-6)
    assert there.environment["device"].startswith("pretended")
    assert again.kl.mean == pytest.approx(found.kl.mean, rel=0.2)  # an estimate


def test_a_step_of_decoding_neither_copies_nor_waits(tiny_checkpoint: TinyCheckpoint) -> None:
    source = tiny_checkpoint("llama", dtype="bfloat16")
    with pretended() as seen, torch.no_grad():
        network = load_runtime(open_model(source, Session(DEVICE))).network
        run = Run(network, Cell(1, 16, 2))
        told: Any = {"past_key_values": run.cache, "use_cache": True, **run.options}
        network(input_ids=run.ids, **told)
        before = Counts(**{name: counter.copy() for name, counter in vars(seen).items()})
        network(input_ids=torch.zeros(1, 1, dtype=torch.long, device=DEVICE), **told)
    assert seen.launches.total() > before.launches.total()
    assert seen.to_device == before.to_device
    assert seen.to_host == before.to_host
    assert seen.waits == before.waits


def test_speed_holds_one_model_at_a_time_and_survives_what_does_not_fit(
    tiny_checkpoint: TinyCheckpoint, tmp_path: Path
) -> None:
    source = tiny_checkpoint("llama", dtype="bfloat16")
    recipe = build_recipe("smoothquant", method="rtn")
    quantkit.quantize(str(source), tmp_path / "out", recipe=recipe, evaluate=False, device="cpu")
    small, large = Cell(1, 16, 2), Cell(64, 16, 2)

    def timed(
        model: Path,
        reference: Path | None = None,
        further_bytes: float = math.inf,
        cells: tuple[Cell, ...] = (small,),
    ) -> tuple[LocalResult, int]:
        gc.collect()  # what other tests have left
        with pretended(further_bytes) as seen:
            before = held_bytes()
            effort = Effort(warmups=0, repeats=2)
            found = measure_local(model, reference, Session(DEVICE), cells=cells, effort=effort)
            assert held_bytes() == before
            assert seen.launches.total() > 0
            return found, peak_bytes() - before

    _, alone = timed(tmp_path / "out")
    both, most = timed(tmp_path / "out", source)
    assert both.cells[0].decode_ratio is not None
    assert alone < most < alone + (source / "model.safetensors").stat().st_size
    less, _ = timed(tmp_path / "out", source, further_bytes=alone, cells=(large, small))
    assert [cell.fault for cell in less.cells] == ["out of memory", None]
    assert [cell.reference_fault for cell in less.cells] == ["out of memory"] * 2
    assert less.cells[1].decode_tokens_per_s
    assert less.cells[1].decode_ratio is None
    nothing, _ = timed(tmp_path / "out", further_bytes=alone // 4)
    assert nothing.cells[0].fault == "out of memory"


def test_sweeps_and_fits_run_there(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    source = str(tiny_checkpoint("llama", dtype="bfloat16"))
    with pretended() as seen:
        swept = quantkit.sweep(source, tmp_path / "runs", [short("awq")], windows=2, device=DEVICE)
        calibration = CalibrationSpec(samples=8, sequence_length=64)
        fitted = quantkit.fit(
            source, tmp_path / "fit", size=500_000, calibration=calibration, device=DEVICE
        )
    assert [run.status for run in swept.runs] == ["done", "done"]
    assert fitted.output.is_dir()
    assert any("sensitivity" in line for line in seen.launches)


def group(rows: int, features: int, tokens: int) -> Counts:
    """What one GPTQ group asks of the device."""
    draw = torch.Generator().manual_seed(0)
    weight = torch.randn(rows, features, generator=draw)
    inputs = torch.randn(1, tokens, features, generator=draw).bfloat16()
    with pretended() as seen:
        collector = InputCollector()
        for part in torch.split(inputs.to(DEVICE), 64, 1):
            collector.add(part)
        scheme = Scheme("int", 4, 128, symmetric=True)
        quantized(
            gptq, [weight.to(DEVICE)], collector.finish(), scheme, torch.float16, GptqOptions()
        )
    return Counts(**{name: counter.copy() for name, counter in vars(seen).items()})


def test_a_group_launches_and_waits_by_columns_alone() -> None:
    small, tall = group(64, 256, 256), group(8192, 256, 256)
    assert small.launches.total() == tall.launches.total()
    wide, long = group(64, 512, 256), group(64, 256, 4096)
    assert 1.5 < wide.launches.total() / small.launches.total() < 2.5
    assert small.launches.total() < 1100 * 256 / 128
    for each in (small, tall, wide, long):
        assert each.waits.total() == 2  # finite inputs, a factor
        assert each.to_device.total() == 2


def test_memory_of_the_device_is_planned_and_given_back(
    tiny_checkpoint: TinyCheckpoint, tmp_path: Path
) -> None:
    wide: Any = {"hidden_size": 512, "intermediate_size": 1536, "num_attention_heads": 16}
    source = str(tiny_checkpoint("llama", dtype="bfloat16", **wide))
    recipe = build_recipe("gptq", samples=16, sequence_length=256)
    with pretended():
        before = held_bytes()
        quantkit.quantize(source, tmp_path / "out", recipe=recipe, evaluate=False, device=DEVICE)
        peak = peak_bytes() - before
        gc.collect()
        assert held_bytes() == before
    planned = json.loads((tmp_path / "out" / "quantkit.json").read_text())["planned"]["work_bytes"]
    assert 1 <= planned / peak < 1.1  # so narrow that scales and rotary tables count
