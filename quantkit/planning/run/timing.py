"""How long a run takes on this machine, and what Python with torch holds: known once it was timed.

Nothing is guessed for a machine that was not. What was measured is kept in the user's cache folder
by processor, version of torch and number of threads.
"""

import os
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from quantkit.checkpoint.durable import replace_file
from quantkit.checkpoint.files import found_in, read_json
from quantkit.core.errors import QuantkitError

KEPT = 20
"""Machines that are remembered, the last ones: a folder may be shared by several."""
FOLDER = "QUANTKIT_CACHE"
"""The environment variable that names another folder than `~/.cache/quantkit`."""
LEAST, MOST = 0.6, 2.5
"""Real runs over what products and weights alone take: 0.6 to 2.0 in `benchmarks/planning.py`, on
a machine that did other things, too."""


@dataclass(frozen=True)
class Work:
    """What a run computes, as far as its time goes.

    `forward` and `hessian` are products, `weights` those that are quantized; `crossed` is their
    number times the inputs of each, `cubed` the third power of the inputs of each group.
    """

    forward: int = 0
    hessian: int = 0
    weights: int = 0
    crossed: int = 0
    cubed: int = 0

    def __add__(self, other: "Work") -> "Work":
        return Work(
            self.forward + other.forward,
            self.hessian + other.hessian,
            self.weights + other.weights,
            self.crossed + other.crossed,
            self.cubed + other.cubed,
        )


Rate = Annotated[float, Field(gt=0, lt=1)]
"""Seconds of one product."""


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Solving(_Entry):
    """Seconds that a method takes, each for one of what `Work` counts under the same name."""

    weights: float = Field(ge=0, lt=1)
    crossed: float = Field(ge=0, lt=1)
    cubed: float = Field(ge=0, lt=1)


class Pace(_Entry):
    """What was measured of a machine.

    `forward` has the seconds of a product of activations by the dtype that is computed in, as
    safetensors names it; `hessian` are those of a product in fp32.
    """

    machine: str
    forward: dict[str, Rate]
    hessian: Rate
    solving: dict[str, Solving]
    base_rss_bytes: int = Field(gt=0, lt=1 << 40)

    def seconds(self, work: Work, method: str, dtype: str) -> tuple[float, float] | None:
        """Fewest and most of a run; None where method or dtype were not timed."""
        solving, forward = self.solving.get(method), self.forward.get(dtype)
        if solving is None or forward is None:
            return None
        expected = (
            work.forward * forward
            + work.hessian * self.hessian
            + work.weights * solving.weights
            + work.crossed * solving.crossed
            + work.cubed * solving.cubed
        )
        return LEAST * expected, MOST * expected

    def line(self) -> str:
        """The rates in a few words."""
        rates = [f"{name} {1 / seconds / 1e9:.0f}" for name, seconds in self.forward.items()]
        each = [f"{name} {1e9 * rates.weights:.0f}" for name, rates in self.solving.items()]
        return f"{', '.join(rates)} GMAC/s; ns a weight, at least: {', '.join(each)}"


def machine_key() -> str:
    """What speeds and sizes of runs depend on, of the machine and its libraries."""
    name = found_in(Path("/proc/cpuinfo"), r"^model name\s*: (.+)$") or "unknown processor"
    threads = os.environ.get("OMP_NUM_THREADS") or os.cpu_count()
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = "none"
    return f"{name}, {threads} threads, torch {torch}"


def remember(pace: Pace) -> None:
    """Keep what was measured in the place of what is known of that machine.

    A cache that cannot be written is none.
    """
    others = [known for known in _read() if known.machine != pace.machine]
    kept = ",\n".join(known.model_dump_json() for known in [*others, pace][-KEPT:])
    with suppress(OSError, RuntimeError, QuantkitError):  # RuntimeError: no home
        path = _path()
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, f"[{kept}]\n".encode())


def recall() -> Pace | None:
    """What is known of this machine."""
    known = {pace.machine: pace for pace in _read()}
    return known.get(machine_key()) if known else None  # naming it takes longer than most plans


def _read() -> list[Pace]:
    """All entries of the cache, but for those that no measurement can have left."""
    try:
        entries = read_json(_path())
    except (OSError, RuntimeError, QuantkitError):
        return []
    found = []
    for entry in entries[-KEPT:] if isinstance(entries, list) else ():
        with suppress(ValidationError):
            found.append(Pace.model_validate(entry))
    return found


def _path() -> Path:
    folder = os.environ.get(FOLDER)
    return (Path(folder) if folder else Path.home() / ".cache" / "quantkit") / "machines.json"
