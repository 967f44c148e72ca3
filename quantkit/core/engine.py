"""The contract of an engine: which formats and schemes it loads, as rules."""

from collections.abc import Callable
from dataclasses import dataclass

from quantkit.core.format import LinearFacts
from quantkit.core.scheme import Scheme


@dataclass(frozen=True)
class Engine:
    """One inference engine.

    refuses(format, scheme, linear): a sentence saying why the engine does not load it, or None.
    `versions` are those that the rules were checked against.
    """

    name: str
    summary: str
    versions: str
    refuses: Callable[[str, Scheme, LinearFacts], str | None]
