"""One run after the other, in this process."""

from collections.abc import Iterator, Sequence

from quantkit.results.schema import SweepRun
from quantkit.runs.sweep.journal import Task


def run(tasks: Sequence[Task]) -> Iterator[SweepRun]:
    """Results in the order of the tasks."""
    for task in tasks:
        yield task()


RUNNER = run
