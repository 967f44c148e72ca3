"""SHA256SUMS is no list of sums."""

from collections.abc import Iterator

from quantkit.checkpoint.filenames import SUMS
from quantkit.checkpoint.sums import Sums
from quantkit.core.check import Check, Fault


def find(sums: Sums) -> Iterator[Fault]:
    """The line that is none."""
    if sums.error:
        yield Fault(SUMS, sums.error)


CHECK = Check("sums", "SHA256SUMS is no list of sums", "fetch the file again", find)
