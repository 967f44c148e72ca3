"""The rules of method, format and engines that every scheme of a recipe has to keep."""

from collections.abc import Callable, Sequence

from quantkit.core import registry
from quantkit.core.engine import Engine
from quantkit.core.facts import Check, LinearFacts
from quantkit.core.format import Format
from quantkit.core.options import Told
from quantkit.core.scheme import Scheme


def rules_of(method: Told | None, output: Format, engines: Sequence[Engine]) -> list[Check]:
    """The rules that every scheme has to keep; each gives a sentence saying what it breaks.

    A `method` of None breaks none.
    """

    def method_check(scheme: Scheme, _: LinearFacts) -> str | None:
        if method is None or (scheme.grid, scheme.bits) in method.grids:
            return None
        near = sorted((abs(b - scheme.bits), b) for grid, b in method.grids if grid == scheme.grid)
        hint = f"--bits {near[0][1]}" if near else f"--set scheme.grid={min(method.grids)[0]}"
        return (
            f"method {method.name} does not make {scheme.grid} with {scheme.bits} bits; try: {hint}"
        )

    def format_check(scheme: Scheme, linear: LinearFacts) -> str | None:
        fault = output.check(scheme, linear)
        if fault is None or "; try: " in fault:
            return fault
        others = (registry.load("formats", name, "FORMAT") for name in registry.names("formats"))
        holding = [other.name for other in others if other.check(scheme, linear) is None]
        return f"{fault}; try: --format {holding[0]}" if holding else fault

    def engine_check(engine: Engine) -> Callable[[Scheme, LinearFacts], str | None]:
        return lambda scheme, linear: engine.refuses(output.name, scheme, linear)

    def sense_check(scheme: Scheme, _: LinearFacts) -> str | None:
        return scheme.contradiction()

    return [sense_check, method_check, format_check, *(engine_check(engine) for engine in engines)]
