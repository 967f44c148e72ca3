"""One function per verb: where the parts are put together."""

from quantkit.api.artifacts import dry_run, fit, quantize
from quantkit.api.evaluation import demo, evaluate, generate, report, sweep
from quantkit.api.planning import doctor, plan
from quantkit.pipeline.doctor import Finding

__all__ = [
    "Finding",
    "demo",
    "doctor",
    "dry_run",
    "evaluate",
    "fit",
    "generate",
    "plan",
    "quantize",
    "report",
    "sweep",
]
