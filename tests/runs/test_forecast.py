"""What a run will take, planned from headers alone, by the trace, and in fact."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import quantkit
from quantkit.checkpoint.reader import open_checkpoint
from quantkit.checkpoint.shards import DEFAULT_SHARD_SIZE
from quantkit.core.errors import RefusedError, ResourceError
from quantkit.model.embedded_model import FOLDER
from quantkit.model.open import open_model
from quantkit.pipeline.start import start
from quantkit.planning.model.config import read_architecture
from quantkit.planning.model.headers import inventory_from_headers
from quantkit.planning.run.files import Run, plan_run, quantized_by
from quantkit.planning.run.quantization import plan_linears
from quantkit.recipes.loader import build_recipe
from quantkit.runs.ceiling import ceiling_of
from quantkit.runs.forecast import plan_here, plan_prepared, require_memory
from tests.conftest import FAMILIES, LONG_TAIL

RUN = """
import json, sys, quantkit
quantkit.quantize(
    sys.argv[1], sys.argv[2], evaluate=False, max_shard_size=int(sys.argv[4]),
    recipe=quantkit.build_recipe(**json.loads(sys.argv[3])),
)
"""


@pytest.mark.parametrize("family", [*FAMILIES, *LONG_TAIL])
def test_headers_alone_plan_what_the_trace_plans(
    tiny_checkpoint: Callable[..., Path], family: str
) -> None:
    folder = tiny_checkpoint(family, dtype="bfloat16")
    recipe = build_recipe(method="gptq", bits=8, group_size="channel", samples=4)
    try:
        prepared = start(open_model(folder), recipe)
    except RefusedError:
        pytest.skip("quantkit cannot quantize this family")
    traced = plan_prepared(prepared, (4, 64), DEFAULT_SHARD_SIZE)
    checkpoint = open_checkpoint(folder)
    architecture = read_architecture(checkpoint.config)
    inventory = inventory_from_headers(checkpoint.names, architecture)
    run = Run(
        prepared.method, prepared.format, architecture.hidden, "BF16", 4, 64, DEFAULT_SHARD_SIZE
    )
    linears = plan_linears(inventory, recipe, transposed=family == "gpt2")
    files, memory, time = plan_run(inventory, quantized_by(linears, inventory), run)
    stored = prepared.model.weights.modules  # headers have the names of the files
    assert linears.schemes == {stored[name]: scheme for name, scheme in traced.schemes.items()}
    assert files == traced.files
    assert traced.memory is not None
    assert traced.time is not None
    assert memory.peak.bytes == pytest.approx(traced.memory.peak.bytes, rel=0.1)
    assert time.work.weights == traced.time.work.weights


@pytest.mark.long
@pytest.mark.parametrize(
    ("family", "flags"),
    [
        ("llama", {"method": "gptq", "samples": 64, "sequence_length": 256}),
        ("embedded", {"recipe": "nf4-double", "samples": 0}),
        ("embedded", {"method": "smoothquant", "samples": 16, "sequence_length": 512}),
    ],
)
def test_real_runs_take_what_was_planned(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path, family: str, flags: dict[str, Any]
) -> None:
    dtype = "bfloat16" if family == "llama" else "float32"
    folder = FOLDER if family == "embedded" else tiny_checkpoint(family, dtype=dtype)
    out = tmp_path / "out"
    arguments = [str(folder), str(out), json.dumps(flags), str(700_000)]
    subprocess.run([sys.executable, "-c", RUN, *arguments], check=True)
    manifest = json.loads((out / "quantkit.json").read_text())
    planned, measured = manifest["planned"], manifest["measured"]
    files = [path.stat().st_size for path in out.glob("*.safetensors")]
    assert len(files) > 1 or family != "embedded"
    assert planned["bytes"] == sum(files) == manifest["bytes"]
    assert 0.95 < planned["peak_rss_bytes"] / measured["peak_rss_bytes"] < 1.1
    assert planned["base_rss_bytes"] < measured["peak_rss_bytes"]


def test_a_dry_run_is_the_plan_that_the_run_keeps(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    folder, recipe = str(tiny_checkpoint("llama")), build_recipe(samples=4, sequence_length=64)
    shared: dict[str, Any] = {"recipe": recipe, "device": "cpu", "max_shard_size": 700_000}
    dry = quantkit.dry_run(folder, evaluate=False, **shared)
    run = quantkit.quantize(folder, tmp_path / "out", evaluate=False, **shared)
    assert dry.files is not None
    assert dry.files.bytes == run.bytes
    assert dry.recipe == recipe
    assert set(dry.schemes) == {module["name"] for module in run.modules}
    found = dry.resources()
    assert found.keys() == run.planned.keys()
    for key in ("bytes", "work_bytes"):
        assert found[key] == run.planned[key]


def test_a_run_that_cannot_fit_is_refused_before_it_begins(
    tiny_checkpoint: Callable[..., Path],
) -> None:
    prepared = start(open_model(tiny_checkpoint("llama")), build_recipe(samples=4))
    found = plan_here(prepared, (0, 0), DEFAULT_SHARD_SIZE)
    assert found.memory is not None
    here = ceiling_of(torch.device("cpu"))
    assert here.free is not None
    assert here.free > 10**8
    require_memory(found, here)
    vast = replace(found.memory.peak, bytes=2 * here.free)
    monstrous = replace(found, memory=replace(found.memory, stages=(vast,)))
    with pytest.raises(ResourceError, match="the run needs about") as caught:
        require_memory(monstrous, here)
    assert caught.value.exit_code == 5
    assert "--samples" in caught.value.hint
    require_memory(monstrous, replace(here, free=None))
