"""Runs that end early go on to the bytes of an undisturbed one, or say why they cannot."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import quantkit
from quantkit.core.errors import InputError, IntegrityError, QuantkitError, RefusedError
from quantkit.core.progress import Progress

QUICK: dict[str, Any] = {"samples": 4, "sequence_length": 64}
KILLS = Path(__file__).parents[2] / "benchmarks" / "kills.py"


def recipe(method: str, *settings: str, **changes: Any) -> quantkit.Recipe:
    return quantkit.build_recipe(method, settings=settings, **(QUICK | changes))


def content(folder: Path) -> dict[str, bytes]:
    """Every file, but of the manifest only what two runs share, and no sum over it."""
    found = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    manifest = json.loads(found["quantkit.json"]) | {"measured": {}, "planned": {}}
    found["quantkit.json"] = json.dumps(manifest).encode()
    sums = found["SHA256SUMS"].splitlines()
    found["SHA256SUMS"] = b"\n".join(line for line in sums if b"quantkit.json" not in line)
    return found


def stopping(stage: str, done: int) -> Callable[[Progress], None]:
    """A report that ends the run, as Ctrl-C does, once so many steps of a stage are done."""

    def report(progress: Progress) -> None:
        if (progress.stage, progress.done) == (stage, done):
            raise KeyboardInterrupt

    return report


def stop(model: Path, output: Path, wanted: quantkit.Recipe, done: int, **options: Any) -> None:
    report = stopping(options.pop("stage", "quantize"), done)
    with pytest.raises(KeyboardInterrupt):
        quantkit.quantize(str(model), output, recipe=wanted, report=report, **options)


def seen(told: list[str]) -> Callable[[Progress], None]:
    return lambda progress: told.append(f"{progress.stage}: {progress.detail}")


WAYS: dict[str, tuple[str, quantkit.Recipe]] = {
    "rtn": ("llama", recipe("rtn")),
    "rtn blind": ("llama_tied", recipe("rtn", samples=0)),
    "gptq": ("qwen3", recipe("gptq")),
    "awq": ("llama", recipe("awq")),
    "smoothquant": ("llama", recipe("smoothquant")),
    "nf4": ("gemma3", recipe("nf4")),
    "compensated": ("llama", recipe("gptq", "calibration.compensate=true")),
    "cache": ("llama", recipe("rtn", "kv_cache=fp8-tensor", format="compressed-tensors")),
    "experts": ("experts_apart", recipe("gptq", format="compressed-tensors")),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_stopped_run_goes_on_to_the_same_bytes(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path, way: str
) -> None:
    family, wanted = WAYS[way]
    model = tiny_checkpoint(family, dtype="bfloat16")
    quantkit.quantize(str(model), tmp_path / "whole", recipe=wanted, evaluate=False)
    # at the end of a block, which is then dropped with what was not yet committed
    stop(model, tmp_path / "out", wanted, 2, evaluate=False)
    assert not (tmp_path / "out").exists()
    told: list[str] = []
    result = quantkit.resume(tmp_path / "out", report=seen(told))
    assert result is not None
    assert "continue: 1 of 2 blocks are done" in told
    assert content(tmp_path / "out") == content(tmp_path / "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "whole"]


def test_a_run_stopped_during_its_evaluation_is_evaluated_when_it_goes_on(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    model, wanted = tiny_checkpoint("llama", dtype="bfloat16"), recipe("rtn")
    quantkit.quantize(str(model), tmp_path / "whole", recipe=wanted)
    stop(model, tmp_path / "out", wanted, 1, stage="verify")
    told: list[str] = []
    result = quantkit.quantize(str(model), tmp_path / "out", recipe=wanted, report=seen(told))
    assert "continue: 2 of 2 blocks are done" in told
    assert not [line for line in told if line.startswith("quantize")]
    assert result.evaluation is not None
    assert content(tmp_path / "out") == content(tmp_path / "whole")


@pytest.mark.parametrize(
    ("change", "kind", "why"),
    [
        ("source", IntegrityError, "source differs: model.safetensors"),
        ("calibration", RefusedError, "calibration differs"),
        ("recipe", RefusedError, r"bits \(4 there, 3 here\)"),
        ("files", RefusedError, "files differs"),
        ("code", RefusedError, "code differs"),
    ],
)
def test_what_has_changed_is_named(
    tiny_checkpoint: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
    kind: type[QuantkitError],
    why: str,
) -> None:
    model, output = tiny_checkpoint("llama", private=True), tmp_path / "out"
    text = tmp_path / "text.txt"
    text.write_text("a text of some length. " * 200, encoding="utf-8")
    wanted: dict[str, Any] = {"calibration": str(text), "bits": 4}
    stop(model, output, recipe("rtn", **wanted), 2, evaluate=False)
    options: dict[str, Any] = {"evaluate": False}
    if change == "source":
        os.utime(model / "model.safetensors")
    elif change == "calibration":
        text.write_text("another text of some length. " * 200, encoding="utf-8")
    elif change == "recipe":
        wanted["bits"] = 3
    elif change == "files":
        options["max_shard_size"] = 100_000
    else:
        monkeypatch.setattr("quantkit.runs.job.code_sha256", lambda: "another")
    with pytest.raises(kind, match=why) as caught:
        quantkit.quantize(str(model), output, recipe=recipe("rtn", **wanted), **options)
    shutil.rmtree(output.with_name("out.partial"))  # what the hint says
    assert f"rm -r {output}.partial" in str(caught.value)
    quantkit.quantize(str(model), output, recipe=recipe("rtn", **wanted), **options)
    assert {path.name for path in tmp_path.iterdir()} == {"out", "text.txt"}


def test_there_must_be_a_run_to_go_on_with(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="no unfinished run"):
        quantkit.resume(tmp_path / "out")
    model, wanted = tiny_checkpoint("llama"), recipe("rtn")
    stop(model, tmp_path / "other", wanted, 2, evaluate=False)
    quantkit.quantize(str(model), tmp_path / "out", recipe=wanted, evaluate=False)
    # killed after its last rename: complete, with a journal beside it
    (tmp_path / "other.journal").rename(tmp_path / "out.journal")
    assert quantkit.resume(tmp_path / "out") is None
    assert not (tmp_path / "out.journal").exists()


def test_a_journal_cannot_trust_code(tiny_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    model, wanted = tiny_checkpoint("llama"), recipe("rtn")
    stop(model, tmp_path / "out", wanted, 2, evaluate=False, trust_remote_code=True)
    with pytest.raises(RefusedError, match="trusts code"):
        quantkit.resume(tmp_path / "out")


def test_killed_anywhere_it_goes_on_to_the_same_bytes(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    """A sample of what `benchmarks/kills.py` does at every call: SIGKILL in real runs."""
    model = tiny_checkpoint("llama", dtype="bfloat16")
    command = [sys.executable, str(KILLS), str(model), str(tmp_path / "runs")]
    several = ["--case", "gptq", "--every", "--take", "70/60", "--random", "1"]
    done = subprocess.run([*command, *several], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 resumed" not in done.stdout
