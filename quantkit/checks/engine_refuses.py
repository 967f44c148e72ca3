"""The engine does not load a linear in its format and scheme, or loads it wrong without a word."""

from collections.abc import Iterator

from quantkit.core.check import Check, Fault
from quantkit.core.rules import kv_cache_fault, load_fault
from quantkit.planning.serve.served import Served


def find(served: Served) -> Iterator[Fault]:
    """What the engine's rules say of each linear, and of all of them together."""
    engine, output = served.engine, served.format
    if output is None:
        if served.method and engine.methods and served.method not in engine.methods:
            yield Fault("config.json", f"{engine.summary} has no loader for {served.method}")
        return
    for name, scheme in served.schemes.items():
        if scheme is not None:
            said = load_fault(engine, output, scheme, served.linears[name])
            if said:
                yield _fault(name, said)
    for said in (engine.refuses_mix(served.schemes), kv_cache_fault(served.kv_cache, engine)):
        if said:
            yield _fault("config.json", said)


def _fault(path: str, said: str) -> Fault:
    sentence, _, remedy = said.partition("; try: ")
    return Fault(path, f"`{path}`: {sentence}", f"quantize again with {remedy}" if remedy else "")


CHECK = Check(
    "engine",
    "the engine does not load the folder, or loads it wrong without an error",
    "another engine, or quantize again for this one",
    find,
    1,
)
