"""One run after the other, in this process."""

from collections.abc import Iterator, Sequence

from quantkit.results.schema import SweepRun
from quantkit.runs.sweep.journal import Attempt


def run(attempts: Sequence[Attempt]) -> Iterator[SweepRun]:
    """Results in the order of the attempts."""
    for attempt in attempts:
        yield attempt()


RUNNER = run
