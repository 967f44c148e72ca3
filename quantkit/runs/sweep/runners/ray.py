"""Runs spread over the machines of a Ray cluster that is there already."""

from collections.abc import Iterator, Sequence
from typing import Any

from quantkit.core.errors import InputError, ResourceError
from quantkit.results.schema import SweepRun
from quantkit.runs.sweep.journal import Attempt


def run(attempts: Sequence[Attempt]) -> Iterator[SweepRun]:
    """Results as they come; a machine that is lost costs its run, which Ray starts elsewhere.

    The model and the sweep's folder must lie where every machine sees them under the same path.

    Raises:
        InputError: Ray is not installed. ResourceError: no cluster answers.
    """
    try:
        import ray
    except ImportError:
        raise InputError(
            "runner `ray` needs Ray", hint="pip install 'quantkit-deploy[ray]'"
        ) from None
    try:
        ray.init(address="auto", ignore_reinit_error=True, log_to_driver=False)
    except ConnectionError as error:
        hint = "ray start --head, or --runner local"
        raise ResourceError("no Ray cluster answers", why=str(error), hint=hint) from None
    found = ray.cluster_resources()  # type: ignore[no-untyped-call]  # of Ray
    gpus = 1 if found.get("GPU") else 0
    remote: Any = ray.remote(num_gpus=gpus, max_retries=1)(lambda attempt: attempt())
    waiting = {remote.remote(attempt): attempt for attempt in attempts}
    while waiting:
        ready, _ = ray.wait(list(waiting), num_returns=1)
        attempt = waiting.pop(ready[0])
        try:
            yield ray.get(ready[0])
        except ray.exceptions.RayError as error:
            yield attempt.failed(f"its process was lost: {str(error).splitlines()[0]}")


RUNNER = run
