"""Times are known from runs that finished, or not at all."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from quantkit.planning.timing import (
    KEPT,
    PastRun,
    base_bytes,
    machine_key,
    recall,
    remember,
    seconds_range,
)

RUN = PastRun(machine_key(), "gptq", 10**9, 20.0, 400_000_000)


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("QUANTKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "runs.json"


def test_the_last_runs_are_remembered(cache: Path) -> None:
    assert recall() == []
    for count in range(KEPT + 3):
        remember(replace(RUN, seconds=float(count)))
    assert [run.seconds for run in recall()] == [float(n) for n in range(3, KEPT + 3)]
    assert len(json.loads(cache.read_text())) == KEPT


@pytest.mark.parametrize("text", ["", "{", "[1]", '[{"machine": "x"}]', "7", "null"])
def test_a_cache_that_cannot_be_read_is_none(cache: Path, text: str) -> None:
    cache.parent.mkdir()
    cache.write_text(text)
    assert recall() == []
    remember(RUN)
    assert recall() == [RUN]


@pytest.mark.parametrize(
    "wrong",
    [
        {"operations": 0},
        {"operations": 10**400},
        {"operations": "1"},
        {"operations": True},
        {"seconds": -1.0},
        {"seconds": None},
        {"seconds": 0},
        {"base_rss_bytes": 0},
        {"base_rss_bytes": 0.5},
        {"machine": 7},
        {"method": None},
        {"more": 1},
    ],
)
def test_what_no_run_can_have_left_is_passed_over(cache: Path, wrong: dict[str, object]) -> None:
    cache.parent.mkdir()
    cache.write_text(json.dumps([asdict(RUN) | wrong, asdict(RUN), 7]))
    assert recall() == [RUN]
    assert seconds_range(RUN.operations, "gptq", recall()) == (10.0, 40.0)
    assert base_bytes(recall()) == RUN.base_rss_bytes


def test_a_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("QUANTKIT_CACHE")
    monkeypatch.setattr(Path, "home", no_home)
    remember(RUN)
    assert recall() == []


def test_a_cache_that_cannot_be_written_stops_nothing(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.parent.mkdir()
    (cache.parent / "file").write_text("")
    monkeypatch.setenv("QUANTKIT_CACHE", str(cache.parent / "file" / "in"))
    remember(RUN)
    assert recall() == []


def test_no_run_gives_no_time_and_more_runs_their_spread() -> None:
    assert seconds_range(10**9, "gptq", []) is None
    assert seconds_range(10**9, "rtn", [RUN]) is None
    assert seconds_range(2 * 10**9, "gptq", [RUN]) == (20.0, 80.0)
    slower = replace(RUN, seconds=50.0)
    assert seconds_range(2 * 10**9, "gptq", [RUN, slower]) == (40.0, 100.0)


def test_what_python_holds_is_the_middle_of_what_was_seen() -> None:
    assert base_bytes([]) is None
    runs = [replace(RUN, base_rss_bytes=size) for size in (380, 420, 900)]
    assert base_bytes(runs) == 420


def test_the_machine_is_named_by_what_speed_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    one = machine_key()
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert one != machine_key()
    assert "torch" in one
