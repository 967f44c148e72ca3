"""A file that SHA256SUMS names is not in the folder."""

from collections.abc import Iterator

from quantkit.checkpoint.filenames import SUMS
from quantkit.checkpoint.sums import Sums
from quantkit.core.check import Check, Fault


def find(sums: Sums) -> Iterator[Fault]:
    """Each such file."""
    for name in sums.stated:
        if name not in sums.told and not (sums.folder / name).is_file():
            yield Fault(name, f"`{name}` is in `{SUMS}` and not in the folder")


CHECK = Check("sums", "a file of SHA256SUMS is missing", "fetch the file again", find)
