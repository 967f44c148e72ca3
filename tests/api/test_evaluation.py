import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import quantkit
from quantkit.core import registry
from quantkit.core.errors import InputError
from quantkit.core.progress import Progress
from quantkit.results.schema import EvalResult, SweepRun
from quantkit.runs.sweep.journal import Attempt


class Console:
    """Holds what no other process can be given."""

    def __init__(self) -> None:
        self.lock = threading.RLock()

    def report(self, _: Progress) -> None:
        with self.lock:
            pass


def test_what_a_runner_sends_elsewhere_holds_no_console(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[bytes] = []

    def elsewhere(attempts: Sequence[Attempt]) -> Iterator[SweepRun]:
        for attempt in attempts:
            sent.append(pickle.dumps(attempt))
            yield pickle.loads(sent[-1])()

    load = registry.load

    def loaded(folder: str, name: str, attribute: str) -> object:
        return elsewhere if folder == "runs.sweep.runners" else load(folder, name, attribute)

    monkeypatch.setattr(registry, "load", loaded)
    recipe = quantkit.build_recipe("rtn", group_size=64, samples=1, sequence_length=64)
    swept = quantkit.sweep(
        str(tiny_checkpoint("llama", dtype="bfloat16")), tmp_path / "runs", [recipe],
        windows=2, device="cpu", runner="ray", report=Console().report,
    )  # fmt: skip
    assert sent
    assert {run.status for run in swept.runs} == {"done"}


def test_a_cache_of_fp8_costs_quality_and_one_of_16_bits_none(
    tiny_checkpoint: Callable[..., Path],
) -> None:
    folder = str(tiny_checkpoint("llama", dtype="bfloat16"))

    def measured(kv_cache: Any) -> EvalResult:
        return quantkit.evaluate(
            folder, reference=folder, windows=2, sequence_length=64, kv_cache=kv_cache, device="cpu"
        )

    plain, coarse = measured("16-bit"), measured("fp8")
    assert plain.kl is not None
    assert coarse.kl is not None
    assert coarse.kl.mean is not None
    assert plain.kl.mean == 0 < coarse.kl.mean
    assert any("fp8 with scales of 1" in note for note in coarse.notes)


def test_another_cache_reaches_the_evaluator_alone(tiny_checkpoint: Callable[..., Path]) -> None:
    with pytest.raises(InputError, match="--speed"):
        quantkit.evaluate(str(tiny_checkpoint("llama")), kv_cache="fp8", speed=True, device="cpu")
