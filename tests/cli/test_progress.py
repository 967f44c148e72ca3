import itertools
from collections.abc import Sequence

import pytest

from quantkit.cli.progress import Lines, Stage, Stages, figures_of, line_of
from quantkit.core.progress import Progress


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def lefts(steps: Sequence[float], name: str = "quantize") -> list[float | None]:
    """The seconds left after each step of a stage, whose steps take so long."""
    clock = Clock()
    stages, found = Stages(clock), []
    for done, seconds in enumerate(steps, 1):
        clock.now += seconds
        found.append(stages.tick(Progress(name, done, len(steps))).seconds_left(clock.now))
    return found


def test_the_time_left_is_known_from_the_second_step_on() -> None:
    assert lefts([40.0] * 4) == [None, 80.0, 40.0, None]


def test_neither_a_slow_start_nor_a_step_that_was_held_up_is_taken_for_the_rule() -> None:
    assert lefts([500.0, *[40.0] * 3])[1:] == [80.0, 40.0, None]
    held_up = lefts([1.0] * 5 + [3600.0] + [1.0] * 8)
    assert held_up[6:] == pytest.approx([7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0, None])


def test_steps_of_two_kinds_count_both() -> None:
    found = lefts([1.0, 3.0] * 10)
    assert all(left == pytest.approx(2.0 * n, rel=0.35) for n, left in enumerate(found[-2:4:-1], 1))


def test_a_stage_of_the_same_name_begins_anew() -> None:
    clock = Clock()
    stages = Stages(clock)
    for done in range(1, 15):
        clock.now += 30
        stages.tick(Progress("evaluate", done, 14))
    clock.now += 1
    stages.tick(Progress("evaluate", 1, 16))
    clock.now += 1
    stage = stages.tick(Progress("evaluate", 2, 16))
    assert stage.seconds_left(clock.now) == 14.0
    stages.tick(Progress("evaluate", 1, 16))
    assert [each.seconds for each in stages.open] == [stages.open[0].seconds]
    assert not stages.open[0].seconds


def test_work_that_grows_from_step_to_step_is_told_by_its_fraction() -> None:
    clock, stage = Clock(), Stage("triage", 0.0)
    for done in range(1, 6):
        clock.now += done
        share = sum(range(1, done + 1)) / sum(range(1, 11))
        stage.tick(Progress("triage", done, 10, fraction=share), clock.now)
    assert stage.seconds_left(clock.now) == pytest.approx(sum(range(6, 11)))


def logged(ticks: Sequence[tuple[float, Progress]]) -> list[str]:
    clock, lines = Clock(), list[str]()
    log = Lines(lines.append, clock)
    for now, progress in ticks:
        clock.now = now
        log.report(progress)
    return lines


def test_a_log_has_elapsed_seconds_and_no_line_for_every_step() -> None:
    ticks = [(3.0 * n, Progress("quantize", n, 14, f"block {n}")) for n in range(1, 15)]
    assert logged([(0.2, Progress("plan", 1, 1, "1 GB of weights")), *ticks]) == [
        "[   0 s] plan: 1 GB of weights\n",
        "[   6 s] quantize 2/14, 36 s left: block 2\n",
        "[  12 s] quantize 4/14, 30 s left: block 4\n",
        "[  18 s] quantize 6/14, 24 s left: block 6\n",
        "[  24 s] quantize 8/14, 18 s left: block 8\n",
        "[  30 s] quantize 10/14, 12 s left: block 10\n",
        "[  36 s] quantize 12/14, 6.0 s left: block 12\n",
        "[  42 s] quantize 14/14, took 39 s\n",
    ]


def test_a_part_of_a_stage_has_no_end_of_its_own_in_a_log() -> None:
    parts = [Progress("rtn: verify", n, 2) for n in (1, 2)]
    whole = [Progress("sweep", n, 2, f"run {n}") for n in (0, 1, 2)]
    ticks = [whole[0], *parts, whole[1], *parts, whole[2]]
    assert logged(list(zip(itertools.repeat(1.0), ticks, strict=False))) == [
        "[   1 s] sweep 2/2, took 0.0 s\n"
    ]


def test_a_bar_tells_the_rate_and_counts_down() -> None:
    clock, stage = Clock(), Stage("quantize", 0.0)
    for done in (1, 2, 3):
        clock.now += 4
        stage.tick(Progress("quantize", done, 14), clock.now)
    assert figures_of(stage, clock.now) == "44 s left, 4.0 s each"
    assert figures_of(stage, clock.now + 3) == "41 s left, 4.0 s each"
    assert figures_of(stage, clock.now + 100).startswith("0.0 s left")
    assert line_of(stage, clock.now) == "quantize 3/14, 44 s left"
    stage = Stage("verify", clock.now)
    for done in (1, 50):
        clock.now += 1
        stage.tick(Progress("verify", done, 100), clock.now)
    assert figures_of(stage, clock.now) == "1.0 s left, 49/s"
