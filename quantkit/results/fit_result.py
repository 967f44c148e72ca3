"""What `fit` leaves behind in a result: the choice, its rivals and the frontier."""

from typing import Literal

from pydantic import Field

from quantkit.results.record import Record


class FitPoint(Record):
    """What so many bytes of weights bring: `kl` as predicted, `measured_kl` where it was measured.

    `name` is the scheme of a recipe that treats all alike, empty where bits are mixed.
    """

    bytes: int
    kl: float
    measured_kl: float | None = None
    name: str = ""


class Served(Record):
    """Where a fitted model is to be served: what is left of `memory_bytes` is for its weights.

    Bytes are of one of `tensor_parallel` ranks, the cache for `batch` sequences of `context`.
    """

    gpu: str
    tensor_parallel: int = 1
    context: int
    batch: int
    memory_bytes: int
    cache_bytes: int
    other_bytes: int


class Fit(Record):
    """Bits that were chosen for a budget of `budget_bytes`, and what else the budget could hold.

    KL is in nats on `windows` windows of calibration text, which made the choice. `gap`: how much
    less, as a fraction, the predicted KL could at best have been. `difference` is the measured KL
    of the mixed build less that of the best uniform one. `active_bytes` are those that a token
    reads, which is less than `bytes` where there are experts. With `served`, all bytes are those of
    a rank's weights in memory, otherwise of the weight files.
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
