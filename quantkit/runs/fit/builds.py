"""The builds of a fit, of which one becomes the output."""

from pathlib import Path
from typing import Literal, get_args

from quantkit.checkpoint.journal import unfinished

Kind = Literal["uniform", "mixed"]


def build_folder(output: Path, kind: Kind) -> Path:
    """The folder that a build would have if it were the output."""
    return output.with_name(f"{output.name}.{kind}")


def build_folders(output: Path) -> list[Path]:
    """The same of every build of a fit into `output`."""
    return [build_folder(output, kind) for kind in get_args(Kind)]


def unfinished_blocks(output: Path) -> int:
    """Finished blocks that a stopped run into `output` has left, in all of its builds."""
    found = map(unfinished, [output, *build_folders(output)])
    return sum(blocks for _, blocks in filter(None, found))
