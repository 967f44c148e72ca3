"""How fast this machine is and what Python with torch holds, in seconds and bytes, once timed.

Nothing is guessed for a machine that was not timed. Measurements are kept in the user's cache
folder by processor, version of torch and number of threads.
"""

import os
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from quantkit.checkpoint.durable import replace_file
from quantkit.checkpoint.files import found_in, read_json
from quantkit.core.errors import QuantkitError
from quantkit.core.resources import Work

KEPT = 20
"""Machines that are remembered, the last ones: a folder may be shared by several."""
FOLDER = "QUANTKIT_CACHE"
"""The environment variable that names another folder than `~/.cache/quantkit`."""
LEAST, MOST = 0.6, 2.5
"""Real runs over what products and weights alone take: 0.6 to 2.0 in `benchmarks/planning.py`, on
a machine that did other things, too."""


Rate = Annotated[float, Field(gt=0, lt=1)]
"""Seconds of one multiply-add."""


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Solving(_Entry):
    """Seconds that a method takes, each for one of what `Work` counts under the same name."""

    weights: float = Field(ge=0, lt=1)
    crossed: float = Field(ge=0, lt=1)
    cubed: float = Field(ge=0, lt=1)


class MachineSpeed(_Entry):
    """What was measured of a machine.

    `forward` has the seconds of one multiply-add of activations by the dtype of the computation, as
    safetensors names it; `hessian` are those of one in fp32. `base_rss_bytes` are held by Python
    with torch before a run.
    """

    machine: str
    forward: dict[str, Rate]
    hessian: Rate
    solving: dict[str, Solving]
    base_rss_bytes: int = Field(gt=0, lt=1 << 40)

    def seconds(self, work: Work, method: str, dtype: str) -> tuple[float, float] | None:
        """The fewest and the most seconds of a run; None where method or dtype were not timed."""
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
    """The machine and its libraries, as far as the speed and memory of runs depend on them."""
    name = found_in(Path("/proc/cpuinfo"), r"^model name\s*: (.+)$") or "unknown processor"
    threads = os.environ.get("OMP_NUM_THREADS") or os.cpu_count()
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = "none"
    return f"{name}, {threads} threads, torch {torch}"


def remember(speed: MachineSpeed) -> None:
    """Store what was measured, in place of what is stored of that machine.

    A cache that cannot be written is left out.
    """
    others = [known for known in _read() if known.machine != speed.machine]
    kept = ",\n".join(known.model_dump_json() for known in [*others, speed][-KEPT:])
    with suppress(OSError, RuntimeError, QuantkitError):  # RuntimeError: no home
        path = _path()
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, f"[{kept}]\n".encode())


def recall() -> MachineSpeed | None:
    """What is known of this machine."""
    known = {speed.machine: speed for speed in _read()}
    return known.get(machine_key()) if known else None  # naming it takes longer than most plans


def _read() -> list[MachineSpeed]:
    """All entries of the cache, but for those that no measurement can have left."""
    try:
        entries = read_json(_path())
    except (OSError, RuntimeError, QuantkitError):
        return []
    found = []
    for entry in entries[-KEPT:] if isinstance(entries, list) else ():
        with suppress(ValidationError):
            found.append(MachineSpeed.model_validate(entry))
    return found


def _path() -> Path:
    folder = os.environ.get(FOLDER)
    return (Path(folder) if folder else Path.home() / ".cache" / "quantkit") / "machines.json"
