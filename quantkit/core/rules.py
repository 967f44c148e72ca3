"""The rules of method, format and engines, applied to every scheme of a recipe."""

from collections.abc import Callable, Sequence

from quantkit.core import registry
from quantkit.core.engine import Engine
from quantkit.core.errors import RefusedError
from quantkit.core.facts import Check, LinearFacts
from quantkit.core.format import Format
from quantkit.core.grid import Grid
from quantkit.core.method import Method
from quantkit.core.scheme import KVCache, Scheme


def rules_of(method: Method, output: Format, engines: Sequence[Engine]) -> list[Check]:
    """The rules for every scheme; each returns a sentence that states the violation, or None."""
    pairs = method.pairs

    def method_check(scheme: Scheme, _: LinearFacts) -> str | None:
        grid: Grid = scheme.kind
        if (grid.name, scheme.bits) in pairs:
            return None
        own = f"--method {grid.method}" if grid.method else f"--set scheme.grid={pairs[0][0]}"
        near = sorted((abs(b - scheme.bits), b) for name, b in pairs if name == grid.name)
        hint = f"--bits {near[0][1]}" if near else own
        return (
            f"method {method.name} does not support {grid.name} with {scheme.bits} bits; "
            f"try: {hint}"
        )

    def format_check(scheme: Scheme, linear: LinearFacts) -> str | None:
        fault = output.check(scheme, linear)
        if fault is None or "; try: " in fault:
            return fault
        others = (registry.load("formats", name, "FORMAT") for name in registry.names("formats"))
        holding = [other.name for other in others if other.check(scheme, linear) is None]
        if holding:
            return f"{fault}; try: --format {holding[0]}"
        known = scheme.kind.name == Scheme.grid
        return fault if known else f"{fault}; try: --set scheme.grid={Scheme.grid}"

    def engine_check(engine: Engine) -> Callable[[Scheme, LinearFacts], str | None]:
        return lambda scheme, linear: load_fault(engine, output, scheme, linear)

    def sense_check(scheme: Scheme, _: LinearFacts) -> str | None:
        return scheme.contradiction()

    return [sense_check, method_check, format_check, *(engine_check(engine) for engine in engines)]


def load_fault(engine: Engine, output: Format, scheme: Scheme, linear: LinearFacts) -> str | None:
    """Why `engine` does not load `linear` in a format, as a sentence; None if it does.

    Formats that the engine does not list are refused without calling its rules.
    """
    if output.name in engine.formats:
        if linear.merged:
            return (
                f"{engine.summary} looks for linears that the original stores merged, "
                "and has not been tried with them apart; try: leave them out"
            )
        if linear.shared:
            return (
                f"{engine.summary} has not been seen to load quantized linears that several blocks "
                "share; try: leave them out"
            )
        return engine.refuses(output.name, scheme, linear)
    fault = f"{engine.summary} does not load format `{output.name}`"
    for candidate, method in ((scheme, ""), (Scheme(), "--method gptq ")):
        loaded = (name for name in engine.formats if _loads(engine, name, candidate, linear))
        if (name := next(loaded, None)) is not None:
            return f"{fault}; try: {method}--format {name}"
    return f"{fault}; try: another engine"


def require_kv_cache(kv_cache: KVCache | None, output: Format, engines: Sequence[Engine]) -> None:
    """Check that a format and target engines can hold the scales of a cache.

    Raises:
        RefusedError: one of them cannot.
    """
    if kv_cache is None:
        return
    if kv_cache not in output.kv_caches:
        formats = (registry.load("formats", name, "FORMAT") for name in registry.names("formats"))
        holding = [each.name for each in formats if kv_cache in each.kv_caches]
        raise RefusedError(
            f"format {output.name} has no place for the scales of KV cache `{kv_cache}`",
            why=f"formats that have: {', '.join(holding)}",
            hint=f"--format {holding[0]}",
        )
    for engine in engines:
        if fault := kv_cache_fault(kv_cache, engine):
            known = f"--set kv_cache={engine.kv_caches[0]}" if engine.kv_caches else ""
            raise RefusedError(fault, hint=known or "the same recipe without `kv_cache`")


def kv_cache_fault(kv_cache: KVCache | None, engine: Engine) -> str | None:
    """Why `engine` is not said to load the scales of a cache, as a sentence; None if it is."""
    if kv_cache is None or kv_cache in engine.kv_caches:
        return None
    return f"{engine.summary} has not been seen to apply the scales of KV cache `{kv_cache}`"


def unloaded(output: Format) -> str | None:
    """A sentence that states that no engine loads a format; None if an engine lists it."""
    engines = (registry.load("engines", name, "ENGINE") for name in registry.names("engines"))
    if any(output.name in engine.formats for engine in engines):
        return None
    why = f": {output.unloaded}" if output.unloaded else " yet"
    return f"no engine loads format `{output.name}`{why}"


def _loads(engine: Engine, name: str, scheme: Scheme, linear: LinearFacts) -> bool:
    output: Format = registry.load("formats", name, "FORMAT")
    return output.check(scheme, linear) is None and engine.refuses(name, scheme, linear) is None
