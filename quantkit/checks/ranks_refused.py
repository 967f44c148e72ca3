"""The engine cannot divide the folder among that many tensor-parallel ranks."""

from collections.abc import Iterator

from quantkit.core.check import Check, Fault
from quantkit.core.serving import Degrees
from quantkit.planning.model.weights import stored_build
from quantkit.planning.serve.legal import degree_fault, legal_degrees
from quantkit.planning.serve.served import Served


def find(served: Served) -> Iterator[Fault]:
    """Why it cannot, and at which degrees it can."""
    if served.tp == 1 or served.model is None:
        return
    build, degrees = stored_build(served.model), Degrees(served.tp)
    said = degree_fault(served.engine, served.model, build, degrees)
    if said is None:
        return
    legal = legal_degrees(served.engine, served.model, build, Degrees())
    sentence, _, remedy = said.partition("; try: ")
    few = ", ".join(map(str, legal[:8]))
    yield Fault(
        "config.json",
        f"{served.engine.summary} cannot divide it among {served.tp} ranks: {sentence}; "
        f"it can among {few}",
        remedy or f"--tp {max(t for t in legal if t < served.tp)}",
    )


CHECK = Check(
    "engine",
    "the engine cannot divide the folder among that many ranks",
    "another --tp",
    find,
    2,
)
