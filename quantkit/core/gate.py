"""A limit on a measured figure: `kl.mean <= 0.03`, `artifact.bytes <= baseline * 1.02`.

    gate   = figure [scope] operator value [unit] ["*" factor] [scope]
    value  = number | string in quotes | "baseline"
    scope  = "@" "domain"

A parser of its own reads it, never Python's `eval`: a recipe is untrusted input.
"""

import math
import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Any, Literal, NoReturn, get_args

from quantkit.core import registry
from quantkit.core.errors import InputError
from quantkit.core.limit import UNITS, Dimension, Gate, Operator

METRICS = "eval.metrics"

_KL = ("mean", "median", "p90", "p99", "p999", "max")
_BYTES = ("planned", "allocated_peak", "reserved_peak", "host_peak_rss")
_ENGINE_MS = ("ttft_p50", "ttft_p99", "itl_p50", "itl_p99", "tpot_excl_first_p50")
FIGURES: dict[str, Dimension] = {
    "perplexity.value": "number",
    "perplexity.log_ratio": "fraction",
    **{f"kl.{name}": "nats" for name in _KL},
    "top1_agreement": "fraction",
    "true_token_change.mean": "fraction",
    "true_token_change.rms": "fraction",
    "tasks.recovery": "fraction",
    "tasks.worst.recovery": "fraction",
    "tasks.NAME.recovery": "fraction",
    "tasks.NAME.accuracy": "fraction",
    "artifact.bytes": "bytes",
    "artifact.bits_per_weight": "number",
    **{f"memory.{name}_bytes": "bytes" for name in _BYTES},
    "memory.kv_bytes_per_token": "bytes",
    "memory.fragmentation_fraction": "fraction",
    "speed.bNxN.prefill_tokens_per_s": "number",
    "speed.bNxN.decode_tokens_per_s": "number",
    "speed.bNxN.prefill_ratio": "number",
    "speed.bNxN.decode_ratio": "number",
    **{f"speed.bNxN.{name}_ms": "ms" for name in ("ttft_p50", "itl_p50", "itl_p95", "itl_p99")},
    "speed.cN.output_tokens_per_s": "number",
    "speed.cN.failed_requests": "number",
    **{f"speed.cN.{name}_ms": "ms" for name in _ENGINE_MS},
    "engines.NAME": "text",
}
"""The figures with a field of their own in a result; N is a number, NAME a name.

A gate may also name any figure of a registered metric (`metric_figures`). `speed.b1x512` is
measured in this process at batch 1 and 512 tokens of context, `speed.c16` in an engine under 16
concurrent requests.
"""
BY_DOMAIN = ("kl.mean", "perplexity.value", "perplexity.log_ratio", "top1_agreement")
EXAMPLE = "`kl.mean <= 0.05`"

_TOKEN = re.compile(
    r"""\s*(?:(?P<operator><=|>=|==|<|>)|(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)
    |(?P<string>"[^"]*"|'[^']*')|(?P<name>[A-Za-z_][\w-]*(?:\.[\w-]+)*)|(?P<mark>[*@%]))""",
    re.VERBOSE,
)


def parse_gate(text: str) -> Gate:
    """Parse a gate.

    Raises:
        InputError: a syntax error, an unknown figure (the three nearest are listed), or a unit,
            operator or scope that the figure does not have.
    """
    return _Parser(text).gate()


class _Parser:
    """Recursive descent over the tokens of one line."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = list(_tokens(text))
        self.place = 0

    def gate(self) -> Gate:
        figure = self.take("name", "a figure")
        dimension = self.dimension(figure)
        scope = self.scope(figure)
        operator = self.operator(dimension)
        value, unit = self.value(dimension)
        factor = self.factor() if not isinstance(value, str) else 1.0
        scope = scope or self.scope(figure)
        if self.place < len(self.tokens):
            self.fail(f"unexpected `{self.tokens[self.place][1]}` at the end")
        gate = Gate(figure, operator, value, unit, factor, scope)
        if isinstance(gate.limit, float) and not math.isfinite(gate.limit):
            self.fail("the limit must be finite")
        return gate

    def dimension(self, figure: str) -> Dimension:
        known = {**FIGURES, **metric_figures(figure.partition(".")[0])}
        found = known.get(figure) or next(
            (dimension for name, dimension in FIGURES.items() if _matches(figure, name)), None
        )
        if found is None:
            near = nearest(figure, known)
            raise InputError(
                f"unknown figure `{figure}` in the gate `{self.text}`",
                why=f"the nearest are {', '.join(near)}",
                hint=near[0],
            )
        return found

    def operator(self, dimension: Dimension) -> Operator:
        found = self.take("operator", "<=, >=, <, > or ==")
        if dimension == "text" and found != "==":
            self.fail("text is compared with == only")
        return next(operator for operator in get_args(Operator) if operator == found)

    def value(self, dimension: Dimension) -> tuple[float | str | None, str]:
        if dimension == "text":
            return self.take("string", "a text in quotes")[1:-1], ""
        if self.peek("name") == "baseline":
            self.place += 1
            return None, ""
        return self.number(), self.unit(dimension)

    def unit(self, dimension: Dimension) -> str:
        unit = self.peek("name") or ("%" if self.peek("mark") == "%" else "")
        if not unit:
            return ""
        self.place += 1
        if unit not in UNITS or UNITS[unit][0] != dimension:
            units = [name for name, (meant, _) in UNITS.items() if meant == dimension]
            self.fail(f"`{unit}` is not a unit of this figure; use {', '.join(units) or 'none'}")
        return unit

    def factor(self) -> float:
        if self.peek("mark") != "*":
            return 1.0
        self.place += 1
        return self.number()

    def scope(self, figure: str) -> Literal["domain"] | None:
        if self.peek("mark") != "@":
            return None
        self.place += 1
        built_in = any(_matches(figure, known) for known in FIGURES)
        scoped = figure in BY_DOMAIN or not built_in  # only the result shows whether it is a mean
        if self.take("name", "`domain` after @") != "domain" or not scoped:
            self.fail(f"the only scope is @domain, for {', '.join(BY_DOMAIN)}")
        return "domain"

    def number(self) -> float:
        number = float(self.take("number", "a number or `baseline`"))
        if not math.isfinite(number):
            self.fail("the number must be finite")
        return number

    def peek(self, kind: str) -> str:
        if self.place < len(self.tokens) and self.tokens[self.place][0] == kind:
            return self.tokens[self.place][1]
        return ""

    def take(self, kind: str, wanted: str) -> str:
        found = self.peek(kind)
        if not found:
            given = (
                f"`{self.tokens[self.place][1]}`" if self.place < len(self.tokens) else "the end"
            )
            self.fail(f"expected {wanted}, found {given}")
        self.place += 1
        return found

    def fail(self, why: str) -> NoReturn:
        raise InputError(f"`{self.text}` is not a gate", why=why, hint=EXAMPLE)


def metric_figures(metric: str) -> dict[str, Dimension]:
    """The figures of a registered metric, with their dimensions; empty for an unknown metric.

    Only a metric whose figures have no field of their own in a result is imported.
    """
    stated = {known.partition(".")[0] for known in FIGURES}
    if metric in stated or metric.replace("_", "-") not in registry.names(METRICS):
        return {}
    figures: dict[str, Any] = registry.load(METRICS, metric, "METRIC").figures
    return {name: figure.unit for name, figure in figures.items()}


def nearest(figure: str, known_figures: Iterable[str]) -> list[str]:
    """The three known figures whose names are most like this one."""
    blurred = {re.sub(r"\d+", "N", known): known for known in known_figures}
    found = get_close_matches(re.sub(r"\d+", "N", figure), blurred, n=3, cutoff=0)
    return [blurred[name] for name in found]


def _matches(figure: str, known: str) -> bool:
    pattern = re.sub(r"\bNAME\b", r"[\\w-]+", re.escape(known)).replace("N", r"\d+")
    return re.fullmatch(pattern, figure) is not None


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    place = 0
    while text[place:].strip():
        found = _TOKEN.match(text, place)
        if found is None:
            rest = text[place:].strip()
            raise InputError(f"`{text}` is not a gate", why=f"cannot parse `{rest}`", hint=EXAMPLE)
        place = found.end()
        yield str(found.lastgroup), found[str(found.lastgroup)]
