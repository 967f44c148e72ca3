"""Times are known of a machine that was timed, or not at all."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantkit.core.resources import Work
from quantkit.planning.run.timing import (
    KEPT,
    LEAST,
    MOST,
    MachineSpeed,
    Solving,
    machine_key,
    recall,
    remember,
)

SPEED = MachineSpeed(
    machine=machine_key(),
    forward={"BF16": 1e-11, "F32": 2e-11},
    hessian=4e-11,
    solving={"gptq": Solving(weights=2e-7, crossed=3e-11, cubed=2e-11)},
    base_rss_bytes=400_000_000,
)


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("QUANTKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "machines.json"


def of(machine: str) -> MachineSpeed:
    return SPEED.model_copy(update={"machine": machine})


def test_what_was_measured_last_is_remembered_of_each_machine(cache: Path) -> None:
    assert recall() is None
    remember(of("another"))
    assert recall() is None
    remember(SPEED)
    faster = SPEED.model_copy(update={"hessian": 1e-11})
    remember(faster)
    assert recall() == faster
    assert len(json.loads(cache.read_text())) == 2


def test_only_the_last_machines_are_kept(cache: Path) -> None:
    for count in range(KEPT + 3):
        remember(of(f"machine {count}"))
    kept = [entry["machine"] for entry in json.loads(cache.read_text())]
    assert kept == [f"machine {count}" for count in range(3, KEPT + 3)]


@pytest.mark.parametrize("text", ["", "{", "[1]", '[{"machine": "x"}]', "7", "null"])
def test_a_cache_that_cannot_be_read_is_none(cache: Path, text: str) -> None:
    cache.parent.mkdir()
    cache.write_text(text)
    assert recall() is None
    remember(SPEED)
    assert recall() == SPEED


@pytest.mark.parametrize(
    "wrong",
    [
        {"hessian": 0},
        {"hessian": -1.0},
        {"hessian": "1"},
        {"hessian": None},
        {"hessian": 10**400},
        {"forward": {"BF16": "fast"}},
        {"forward": {"BF16": 0.0}},
        {"forward": {"BF16": 1e-11, "F32": -1.0}},
        {"solving": {"gptq": {"weights": 1e-7}}},
        {"solving": {"gptq": {"weights": -1e-7, "crossed": 0.0, "cubed": 0.0}}},
        {"base_rss_bytes": 0},
        {"base_rss_bytes": 0.5},
        {"machine": 7},
        {"more": 1},
    ],
)
def test_what_no_measurement_can_have_left_is_passed_over(
    cache: Path, wrong: dict[str, object]
) -> None:
    cache.parent.mkdir()
    cache.write_text(json.dumps([SPEED.model_dump() | wrong, 7]))
    assert recall() is None
    cache.write_text(json.dumps([SPEED.model_dump() | wrong, SPEED.model_dump(), 7]))
    assert recall() == SPEED


def test_a_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("QUANTKIT_CACHE")
    monkeypatch.setattr(Path, "home", no_home)
    remember(SPEED)
    assert recall() is None


def test_a_cache_that_cannot_be_written_stops_nothing(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.parent.mkdir()
    (cache.parent / "file").write_text("")
    monkeypatch.setenv("QUANTKIT_CACHE", str(cache.parent / "file" / "in"))
    remember(SPEED)
    assert recall() is None


def test_what_was_not_timed_has_no_time() -> None:
    assert SPEED.seconds(Work(weights=1), "rtn", "BF16") is None
    assert SPEED.seconds(Work(weights=1), "gptq", "F16") is None


@given(st.lists(st.integers(0, 10**15), min_size=5, max_size=5), st.integers(1, 50))
def test_twice_the_work_takes_twice_the_time(counts: list[int], times: int) -> None:
    once = Work(*counts)
    one = SPEED.seconds(once, "gptq", "BF16")
    many = SPEED.seconds(sum((once for _ in range(times - 1)), once), "gptq", "BF16")
    assert one is not None
    assert many == pytest.approx((times * one[0], times * one[1]))


@pytest.mark.parametrize(
    ("work", "seconds"),
    [
        (Work(forward=10**12), 10.0),
        (Work(hessian=10**12), 40.0),
        (Work(weights=10**8), 20.0),
        (Work(crossed=10**12), 30.0),
        (Work(cubed=10**12), 20.0),
    ],
)
def test_each_kind_of_work_has_its_rate(work: Work, seconds: float) -> None:
    assert SPEED.seconds(work, "gptq", "BF16") == pytest.approx((LEAST * seconds, MOST * seconds))


def test_the_machine_is_named_by_what_speed_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    one = machine_key()
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert one != machine_key()
    assert "torch" in one
