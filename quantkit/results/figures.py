"""Figures of a result by the names that gates use, with their 95 % intervals."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quantkit.results.answers import Z
from quantkit.results.estimate import stratified_mean
from quantkit.results.schema import (
    Documents,
    EngineSpeed,
    EvalResult,
    Interval,
    LocalSpeed,
    TaskResult,
)

NOT_QUALITY = ("artifact", "memory", "tasks", "speed", "engines")


@dataclass(frozen=True)
class FigureValue:
    """A figure; `value` is None if it was not measured.

    `interval` is None if it is unknown, and NaN for a single document.
    """

    value: float | str | None
    interval: Interval | None = None


def figure_value(result: EvalResult, figure: str) -> FigureValue:
    """A figure by its name in gates: from `quantkit.core.gate.FIGURES` or `result.metrics`."""
    head, _, rest = figure.partition(".")
    if figure in result.metrics:
        return FigureValue(result.metrics[figure].value, result.metrics[figure].ci95)
    if head in _READERS:
        return _READERS[head](result, rest)
    return FigureValue(getattr(getattr(result, head, None), rest, None))


def is_quality(figure: str) -> bool:
    """Whether a figure is computed from the scores of tokens."""
    return figure.partition(".")[0] not in NOT_QUALITY


def document_sums(documents: Documents, figure: str) -> Sequence[float]:
    """Sums (documents,) of a quality figure's terms (NLL for perplexity); empty if not stored."""
    if figure == "perplexity.log_ratio":
        pairs = zip(documents.sum_nll, documents.sum_nll_reference, strict=False)
        return [nll - reference for nll, reference in pairs]
    columns: dict[str, Sequence[float]] = {
        "kl.mean": documents.sum_kl_nats,
        "top1_agreement": documents.top1_hits,
        "perplexity.value": documents.sum_nll,
    }
    return columns.get(figure) or documents.sums.get(figure, [])


def by_domain(result: EvalResult, figure: str) -> dict[str, FigureValue]:
    """The figure of each domain, with an interval over its documents."""
    documents = result.documents
    sums = document_sums(documents, figure)
    found = {}
    for domain in dict.fromkeys(documents.domain if sums else ()):
        places = [i for i, name in enumerate(documents.domain) if name == domain]
        counts = [documents.n[i] for i in places]
        mean = stratified_mean([sums[i] for i in places], counts, [domain] * len(places))
        ends = (mean.value, *mean.interval)
        value, low, high = map(_exp, ends) if figure == "perplexity.value" else ends
        found[domain] = FigureValue(value, (low, high))
    return found


def _perplexity(result: EvalResult, name: str) -> FigureValue:
    found = result.perplexity
    if name == "log_ratio":
        return FigureValue(found.log_ratio, found.log_ratio_ci95)
    return FigureValue(found.value, found.ci95)


def _divergence(result: EvalResult, name: str) -> FigureValue:
    if result.kl is None:
        return FigureValue(None)
    value = getattr(result.kl, name)
    interval = result.kl.ci95 if name == "mean" else getattr(result.kl, f"{name}_ci95", None)
    return FigureValue(value, interval)


def _task(result: EvalResult, rest: str) -> FigureValue:
    """`recovery` is the mean over tasks, `worst.recovery` the smallest."""
    name, _, figure = rest.rpartition(".")
    tasks = result.tasks
    if name not in ("", "worst"):
        found = next((task for task in tasks if task.name == name), None)
        if found is None:
            return FigureValue(None)
        return _accuracy(found) if figure == "accuracy" else _recovery(found)
    if not tasks:
        return FigureValue(None)
    values = [task.recovery for task in tasks]
    lows, highs = zip(*(task.recovery_ci95 or (-math.inf, math.inf) for task in tasks), strict=True)
    if name == "worst":
        return FigureValue(min(values), (min(lows), min(highs)))
    mean = sum(values) / len(values)
    low = math.hypot(*(v - end for v, end in zip(values, lows, strict=True))) / len(values)
    high = math.hypot(*(end - v for v, end in zip(values, highs, strict=True))) / len(values)
    return FigureValue(mean, (mean - low, mean + high))


def _recovery(task: TaskResult) -> FigureValue:
    return FigureValue(task.recovery, task.recovery_ci95)


def _accuracy(task: TaskResult) -> FigureValue:
    """Wilson's score interval (JASA 22, 1927), which also holds near 0 and 1."""
    share, n = task.accuracy, task.questions
    scale = 1 + Z**2 / n
    centre = (share + Z**2 / (2 * n)) / scale
    half = Z * math.sqrt(share * (1 - share) / n + Z**2 / (4 * n**2)) / scale
    return FigureValue(share, (centre - half, centre + half))


def _speed(result: EvalResult, rest: str) -> FigureValue:
    cell, _, name = rest.partition(".")
    found = speed_cell(result, cell)
    if found is None:
        return FigureValue(None)
    short = name.removesuffix("_ms").removesuffix("_tokens_per_s")
    return FigureValue(getattr(found, name), getattr(found, f"{short}_ci95", None))


def speed_cell(result: EvalResult, cell: str) -> LocalSpeed | EngineSpeed | None:
    """The measurement called `b1x512` or `c16`; None if there is none."""
    if cell.startswith("c"):
        return next((c for c in result.speed.engine if f"c{c.concurrency}" == cell), None)
    cells = result.speed.local
    return next((c for c in cells if f"b{c.batch}x{c.context_tokens}" == cell), None)


def _exp(value: float) -> float:
    return math.inf if value > 700 else math.exp(value)


_READERS: dict[str, Callable[[EvalResult, str], FigureValue]] = {
    "perplexity": _perplexity,
    "kl": _divergence,
    "top1_agreement": lambda result, _: FigureValue(result.top1_agreement, result.top1_ci95),
    "tasks": _task,
    "speed": _speed,
    "engines": lambda result, name: FigureValue(result.engines.get(name)),
}
