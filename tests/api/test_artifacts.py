"""What a run opens, builds, loads and reads: each thing once for each use."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers

import quantkit
from quantkit.checkpoint.checkpoint import Checkpoint
from quantkit.model import open as opening


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a run opens a folder, builds a skeleton, loads a tokenizer and reads a tensor."""
    counts: Counter[str] = Counter()

    def count(home: Any, name: str, label: Callable[..., str]) -> None:
        real = getattr(home, name)

        def counted(*arguments: Any, **options: Any) -> Any:
            counts[label(*arguments)] += 1
            return real(*arguments, **options)

        monkeypatch.setattr(home, name, counted)

    def side(folder: Path) -> str:
        return "artifact" if folder.name.endswith(".partial") else "source"

    count(opening, "open_checkpoint", lambda folder: f"open {side(folder)}")
    count(opening, "build_skeleton", lambda *_: "skeleton")
    count(transformers.AutoTokenizer, "from_pretrained", lambda *_: "tokenizer")
    count(Checkpoint, "tensor", lambda self, name: f"read {side(self.folder)} {name}")
    return counts


@pytest.mark.parametrize("method", ["rtn", "gptq"])
def test_a_run_opens_builds_and_reads_once(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path, calls: Counter[str], method: str
) -> None:
    folder = tiny_checkpoint("llama", dtype="bfloat16")
    recipe = quantkit.build_recipe(method, samples=4, sequence_length=64)
    made = quantkit.quantize(str(folder), tmp_path / "out", recipe=recipe, device="cpu")
    assert made.evaluation is not None, made.remarks
    assert (calls["open source"], calls["open artifact"]) == (1, 1)
    assert (calls["skeleton"], calls["tokenizer"]) == (1, 1)
    for tensor in ("model.norm.weight", "lm_head.weight"):  # copied and scored; scored
        assert (calls[f"read source {tensor}"], calls[f"read artifact {tensor}"]) == (2, 1)


def test_an_evaluation_opens_each_model_once(
    tiny_checkpoint: Callable[..., Path], calls: Counter[str]
) -> None:
    folder, other = (str(tiny_checkpoint("llama", seed=seed)) for seed in (0, 1))
    quantkit.evaluate(folder, reference=other, windows=2, triage=True, device="cpu")
    assert (calls["open source"], calls["skeleton"], calls["tokenizer"]) == (2, 2, 2)


def test_a_run_reports_its_progress(tiny_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    seen: list[quantkit.Progress] = []
    recipe = quantkit.build_recipe("rtn", samples=4, sequence_length=64)
    folder, output = str(tiny_checkpoint("llama")), tmp_path / "out"
    quantkit.quantize(folder, output, recipe=recipe, device="cpu", report=seen.append)
    assert all(isinstance(progress, quantkit.Progress) for progress in seen)
    stages = list(dict.fromkeys(progress.stage for progress in seen))
    assert stages[:3] == ["plan", "quantize", "verify"]
    assert [p.done for p in seen if p.stage == "quantize"] == [1, 2]
    assert all(0 <= progress.done <= progress.total for progress in seen)
