"""The `fit` part of a result: the chosen build, its alternatives and the frontier."""

from typing import Literal

from pydantic import Field

from quantkit.results.record import Record


class FitPoint(Record):
    """One build: its bytes, predicted `kl`, and `measured_kl` if it was measured.

    `name` is the scheme of a uniform build, empty for a mixed one.
    """

    bytes: int
    kl: float
    measured_kl: float | None = None
    name: str = ""


class Served(Record):
    """The serving setup behind a budget: its weights get what is left of `memory_bytes`.

    Bytes are per rank of `tensor_parallel`; the cache is for `batch` sequences of `context` tokens.
    """

    gpu: str
    tensor_parallel: int = 1
    context: int
    batch: int
    memory_bytes: int
    cache_bytes: int
    other_bytes: int


class Fit(Record):
    """The build chosen for a budget of `budget_bytes`, and the alternatives.

    KL is in nats on `windows` windows of calibration text. `gap`: how much lower, as a fraction,
    the predicted KL of any choice could be. `difference`: measured KL of the mixed build minus that
    of the best uniform one. `active_bytes`: weights that one token reads, fewer than `bytes` with
    experts. With `served`, bytes count a rank's weights in memory, otherwise the weight files.
    """

    budget_bytes: int
    bytes: int
    active_bytes: int | None = None
    engine: str
    served: Served | None = None
    shipped: Literal["mixed", "uniform"]
    why: str
    gap: float
    windows: int
    mixed: FitPoint | None = None
    uniform: FitPoint | None = None
    difference: float | None = None
    difference_ci95: tuple[float, float] | None = None
    frontier: list[FitPoint] = Field(default_factory=list)
    uniforms: list[FitPoint] = Field(default_factory=list)
