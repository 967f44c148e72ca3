"""What making an artifact takes here: a run's plan beside what the machine adds to it."""

from dataclasses import dataclass

from quantkit.checkpoint.shards import DEFAULT_SHARD_SIZE
from quantkit.core.recipe import Recipe
from quantkit.planning.model.weights import PlannedModel
from quantkit.planning.run.files import RunPlan, plan_recipe
from quantkit.planning.run.timing import Pace, recall

UNITS = ((1, "seconds"), (60, "minutes"), (3600, "hours"), (86400, "days"))
KEPT = 1.02
"""What an allocator keeps for itself: real peaks lie from 3 % under to 4 % over what is counted."""


def span(seconds: tuple[float, float]) -> str:
    """Fewest and most seconds, for people: `2.1 to 8.8 minutes`."""
    least, most = seconds
    unit, name = next((u, n) for u, n in UNITS if most < 100 * u or n == "days")
    return f"{least / unit:.2g} to {most / unit:.2g} {name}"


@dataclass(frozen=True)
class Making:
    """A run's plan, what Python with torch holds beside it, the peak of both, and the time.

    `base_rss_bytes` and `peak_rss_bytes` are None where nothing is known of this machine, or a GPU
    holds the tensors, `seconds` (least, most) where it was not timed.
    """

    plan: RunPlan
    base_rss_bytes: int | None = None
    peak_rss_bytes: int | None = None
    seconds: tuple[float, float] | None = None

    def to_dict(self) -> dict[str, float]:
        """What is known, for JSON; `work_bytes` are those of the run alone."""
        known: dict[str, float | None] = {
            "bytes": self.plan.bytes,
            "work_bytes": self.plan.peak.bytes,
            "base_rss_bytes": self.base_rss_bytes,
            "peak_rss_bytes": self.peak_rss_bytes,
            "least_seconds": self.seconds[0] if self.seconds else None,
            "most_seconds": self.seconds[1] if self.seconds else None,
        }
        return {key: value for key, value in known.items() if value is not None}

    def line(self) -> str:
        """The plan in a few words."""
        parts = [f"{self.plan.bytes / 1e9:.3g} GB of weights"]
        if self.peak_rss_bytes is not None:
            parts.append(f"about {self.peak_rss_bytes / 1e9:.3g} GB of memory")
        else:
            memory = f"{self.plan.peak.bytes / 1e9:.3g} GB of memory"
            parts.append(f"about {memory} beside Python with torch")
        if self.seconds is not None:
            parts.append(span(self.seconds))
        return ", ".join(parts)


def made_here(
    plan: RunPlan, method: str, pace: Pace | None, base: int | None = None, held: int = 0
) -> Making:
    """The plan with what a machine of this `pace` adds.

    This process holds `base` bytes before the run, if it is the one, and `held` at most so far.
    """
    if base is None and pace is not None:
        base = pace.base_rss_bytes
    peak = None if base is None else max(held, round(KEPT * (base + plan.peak.bytes)))
    return Making(plan, base, peak, pace.seconds(plan.work, method, plan.dtype) if pace else None)


def making(model: PlannedModel, recipe: Recipe, max_shard_size: int = DEFAULT_SHARD_SIZE) -> Making:
    """What `quantize` with `recipe` would take on this machine's CPU.

    Raises:
        InputError, RefusedError: as `quantize`, as far as headers tell.
    """
    return made_here(plan_recipe(model, recipe, max_shard_size), recipe.method, recall())
