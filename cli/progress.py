"""How far the work is: bars on a terminal, lines with the elapsed time elsewhere."""

import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from quantkit.core.progress import Progress
from quantkit.core.units import duration

if TYPE_CHECKING:
    from rich.progress import TaskID

LINE_SECONDS = 5.0
"""Between two lines of a log."""
LEAST_SECONDS = 0.2
"""Of steps that are timed: many short ones are timed together."""
KEPT = 16
"""Timings of a stage, the latest ones."""


@dataclass
class Stage:
    """A stage under way: its place, and the seconds of its latest steps.

    `work` counts done steps of mean length, `marked` is when the last timing ended, and where.
    """

    name: str
    began: float
    done: int = 0
    total: int = 1
    detail: str = ""
    work: float = 0.0
    marked: tuple[float, float] | None = None
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))

    def tick(self, progress: Progress, now: float) -> None:
        """Take over how far the stage is at `now`."""
        self.done, self.total, self.detail = progress.done, progress.total, progress.detail
        share = progress.fraction
        self.work = float(self.done) if share is None else share * self.total
        if self.marked is None:
            self.marked = (now, self.work)
            return
        time_, work = self.marked
        if self.work > work and now - time_ >= LEAST_SECONDS:
            self.seconds.append((now - time_) / (self.work - work))
            self.marked = (now, self.work)

    @property
    def step_seconds(self) -> float | None:
        """Seconds of a step: the mean of the middle half of the timings, None before the second.

        A step that was held up, or the first one with its loading, does not count.
        """
        timings = sorted(self.seconds)
        middle = timings[len(timings) // 4 : len(timings) - len(timings) // 4]
        return sum(middle) / len(middle) if middle else None

    def seconds_left(self, now: float) -> float | None:
        """What is left of the stage; None before its second tick and at its end."""
        if self.step_seconds is None or self.marked is None or self.done >= self.total:
            return None
        time_, work = self.marked
        return max(0.0, self.step_seconds * (self.total - work) - (now - time_))


@dataclass
class Stages:
    """The stages under way, each part of the one before it."""

    clock: Callable[[], float] = time.monotonic
    open: list[Stage] = field(default_factory=list)

    def tick(self, progress: Progress) -> Stage:
        """The stage that the progress is of; those that were part of it are over."""
        now = self.clock()
        names = [stage.name for stage in self.open]
        if progress.stage in names:
            del self.open[names.index(progress.stage) + 1 :]
            if progress.done < self.open[-1].done:
                self.open.pop()
        if not self.open or self.open[-1].name != progress.stage:
            self.open.append(Stage(progress.stage, now))
        stage = self.open[-1]
        stage.tick(progress, now)
        if stage.done >= stage.total:
            self.open.pop()
        return stage


class Lines:
    """A line every few seconds, and one at the end of a stage that is no part of another."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._write, self._clock = write, clock
        self._began = clock()
        self._next = self._began + LINE_SECONDS
        self._stages = Stages(clock)

    def report(self, progress: Progress) -> None:
        """Write a line if it is time for one."""
        stage, now = self._stages.tick(progress), self._clock()
        over = stage.done >= stage.total and not self._stages.open
        if not over and now < self._next:
            return
        self._next = now + LINE_SECONDS
        self._write(f"[{now - self._began:4.0f} s] {line_of(stage, now)}\n")

    def close(self) -> None:
        """Nothing is left on the screen."""


class Bars:
    """A bar for each stage under way, and a line for each that is over, on a terminal's stderr."""

    def __init__(self, clock: Callable[[], float]) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, ProgressColumn, TextColumn
        from rich.progress import Progress as RichProgress
        from rich.table import Column
        from rich.text import Text

        class Figures(ProgressColumn):
            """The time left, counted down between two ticks."""

            def render(self, task: Any) -> Text:
                return Text(figures_of(task.fields["stage"], clock()), no_wrap=True)

        self._clock = clock
        self._stages = Stages(clock)
        self._tasks: dict[int, TaskID] = {}
        self._console = Console(stderr=True, markup=False, emoji=False, highlight=False)
        self._bars = RichProgress(
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
            BarColumn(bar_width=16),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            Figures(),
            TextColumn(
                "{task.fields[detail]}",
                style="dim",
                markup=False,
                table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"),
            ),
            console=self._console,
            expand=True,
            transient=True,
            redirect_stdout=False,
        )
        self._bars.start()

    def report(self, progress: Progress) -> None:
        """Move a bar, or replace it by a line."""
        from quantkit.cli.tables import printable

        stage = self._stages.tick(progress)
        under_way = {id(each) for each in self._stages.open}
        for key in [key for key in self._tasks if key not in under_way]:
            self._bars.remove_task(self._tasks.pop(key))
        if stage.done >= stage.total:
            if not self._stages.open:
                line = printable(line_of(stage, self._clock()))
                self._console.print(line, soft_wrap=True)
            return
        fields: dict[str, Any] = {"stage": stage, "detail": printable(stage.detail)}
        if id(stage) not in self._tasks:
            name = printable(stage.name)
            self._tasks[id(stage)] = self._bars.add_task(name, total=stage.total, **fields)
        self._bars.update(self._tasks[id(stage)], completed=stage.done, total=stage.total, **fields)

    def close(self) -> None:
        """Take the bars off the screen."""
        self._bars.stop()


def display(write: Callable[[str], None], clock: Callable[[], float]) -> Lines | Bars:
    """Bars where stderr is a terminal that can move its cursor, else lines for `write`."""
    if sys.stderr.isatty():
        from rich.console import Console

        if Console(stderr=True).is_interactive:
            return Bars(clock)
    return Lines(write, clock)


def line_of(stage: Stage, now: float) -> str:
    """`quantize 3/14, 40 s left: model.layers.2`; at its end how long it took."""
    if stage.total == 1:
        return f"{stage.name}: {stage.detail}" if stage.detail else stage.name
    line = f"{stage.name} {stage.done}/{stage.total}"
    if stage.done >= stage.total:
        return f"{line}, took {duration(now - stage.began)}"
    left = stage.seconds_left(now)
    line += f", {duration(left)} left" if left is not None else ""
    return f"{line}: {stage.detail}" if stage.detail else line


def figures_of(stage: Stage, now: float) -> str:
    """`40 s left, 3.6 s each`, or steps a second where they are short."""
    left, each = stage.seconds_left(now), stage.step_seconds
    if left is None or not each:
        return duration(now - stage.began)
    rate = f"{duration(each)} each" if each >= 1 else f"{1 / each:.3g}/s"
    return f"{duration(left)} left, {rate}"
