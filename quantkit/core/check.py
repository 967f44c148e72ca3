"""The contract of a check of `verify`, and what a verification finds."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

Stage = Literal["files", "opening", "headers", "tensors", "weights", "source", "engine", "sums"]
"""What a check looks at, in the order in which they run: its `find` gets one of these.

files: a `checkpoint.survey.Survey`, headers and index as they are. opening: the InputError with
which the folder cannot be opened as a model. headers: a `model.declared.Declared`, what config and
headers say of each tensor. tensors: a `model.stored_weights.DenseTensor`, one tensor in slices.
weights: a `model.stored_weights.StoredWeight`, one quantized weight with its tensors. source: a
`model.beside.Beside`, the folder beside its source. engine: a `planning.serve.served.Served`, the
folder in an engine. sums: a `checkpoint.sums.Sums`, the hashes of files.
"""
LAST = 9
"""The rank of checks that run only where no other one of their stage found anything."""
Status = Literal["sound", "faulty", "incomplete"]


class Fault(NamedTuple):
    """What one check found: the file, tensor or module, and a sentence that says what is wrong.

    `remedy` where it is another than the check's. `explains`: further paths whose faults it causes,
    which are not told by themselves.
    """

    path: str
    sentence: str
    remedy: str = ""
    explains: tuple[str, ...] = ()


@dataclass(frozen=True)
class Check:
    """One check; its file's name is its code.

    `summary`: what is wrong where it finds something, for the table of codes. `find` yields the
    faults. `rank`: checks of a stage run in this order, those that name a cause before those that
    only see its effect: of a tensor or module the first fault alone is told.
    """

    stage: Stage
    summary: str
    remedy: str
    find: Callable[..., Iterable[Fault]]
    rank: int = 0


@dataclass(frozen=True)
class Problem:
    """Something that is wrong: `code` is stable, `path` names a file, a tensor or a module."""

    code: str
    path: str
    sentence: str
    remedy: str


@dataclass(frozen=True)
class Unchecked:
    """What could not be checked, and why."""

    path: str
    reason: str


@dataclass(frozen=True)
class Verification:
    """What `verify` found in a folder.

    `modules` quantized linears were decoded, `bytes` of weight files were read. `source`: what they
    were compared with.
    """

    artifact: str
    format: str | None
    problems: tuple[Problem, ...]
    unchecked: tuple[Unchecked, ...]
    modules: int = 0
    tensors: int = 0
    bytes: int = 0
    seconds: float = 0.0
    source: str | None = None
    engine: str | None = None

    @property
    def status(self) -> Status:
        """`sound` only where nothing is wrong and nothing was left out."""
        if self.problems:
            return "faulty"
        return "incomplete" if self.unchecked else "sound"

    @property
    def counts(self) -> Mapping[str, int]:
        """Problems by code, in the order in which they were found."""
        found: dict[str, int] = {}
        for problem in self.problems:
            found[problem.code] = found.get(problem.code, 0) + 1
        return found

    def to_dict(self) -> dict[str, Any]:
        """The whole of it as JSON."""
        return {"status": self.status, "counts": dict(self.counts), **asdict(self)}


class Blamed:
    """The paths that problems explain; a part of one is explained, and so is what it is a part of.

    Two sets, as thousands of tensors may be asked about beside thousands of problems.
    """

    def __init__(self) -> None:
        self.paths: set[str] = set()
        self._above: set[str] = set()

    def add(self, *paths: str) -> None:
        """Add paths of files, modules or tensors."""
        self.paths.update(paths)
        for path in paths:
            self._above.update(_prefixes(path))

    def covers(self, path: str) -> bool:
        """Whether a path is one of them, a part of one, or what one is a part of."""
        known = path in self.paths or path in self._above
        return known or any(prefix in self.paths for prefix in _prefixes(path))


def _prefixes(path: str) -> list[str]:
    words = path.split(".")
    return [".".join(words[:count]) for count in range(1, len(words))]
