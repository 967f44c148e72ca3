"""A file has another hash than SHA256SUMS states, and no other check says what is wrong in it."""

from collections.abc import Iterator

from quantkit.checkpoint.filenames import SUMS
from quantkit.checkpoint.sums import Sums
from quantkit.core.check import Check, Fault


def find(sums: Sums) -> Iterator[Fault]:
    """Each such file."""
    for name in sums.differing():
        if name not in sums.told:
            yield Fault(name, f"`{name}` has another hash than `{SUMS}` states")


CHECK = Check(
    "sums",
    "a file differs from its hash in SHA256SUMS",
    "fetch the file again; if you changed it on purpose, write its sum again",
    find,
)
