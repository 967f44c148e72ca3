import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

import quantkit
from quantkit.core import registry
from quantkit.core.progress import Progress
from quantkit.results.schema import SweepRun
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
