"""The import of torch and transformers, which takes seconds and is therefore reported."""

import sys

from quantkit.core.progress import Progress, Report

NAMES = "torch and transformers"


def load_torch(report: Report) -> None:
    """Import torch and transformers' model classes as a stage of the run, once a process."""
    if "transformers.modeling_utils" in sys.modules:
        return
    report(Progress("load", 0, 1, NAMES))
    import transformers.modeling_utils  # noqa: F401 - what all models import, torch included

    report(Progress("load", 1, 1, NAMES))
