"""A result compared with an older one: regressions beyond the noise of both."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from quantkit.core.gate import BY_DOMAIN
from quantkit.core.limit import Operator
from quantkit.results.answers import accuracy_beside
from quantkit.results.estimate import stratified_mean
from quantkit.results.figures import document_sums, figure_value, is_quality, speed_cell
from quantkit.results.schema import (
    FLOOR_FACTOR,
    EngineSpeed,
    EvalResult,
    Interval,
    LocalSpeed,
)

MACHINE = ("cpu", "gpu", "driver")


@dataclass(frozen=True)
class Allowance:
    """How much worse than the baseline a figure may be: the larger of a share and an amount.

    It ignores changes too small to matter, and covers variation between runs that the interval of
    one run does not contain (another state of the machine).
    """

    figure: str
    operator: Operator
    share: float = 0.0
    amount: float = 0.0

    def limit(self, baseline: float) -> float:
        """The worst value that does not count as a regression."""
        slack = max(self.share * abs(baseline), self.amount)
        return baseline + (slack if self.operator == "<=" else -slack)


QUALITY_ALLOWANCES = (
    Allowance("kl.mean", "<=", share=0.005),
    Allowance("perplexity.value", "<=", share=0.0005),
    Allowance("top1_agreement", ">=", amount=0.0005),
)
SIZE_ALLOWANCES = (
    Allowance("artifact.bytes", "<="),
    Allowance("memory.planned_bytes", "<="),
)
MEMORY_ALLOWANCES = tuple(
    Allowance(f"memory.{name}_bytes", "<=", share=0.005, amount=16 << 20)
    for name in ("allocated_peak", "host_peak_rss")
)
SPEED_SHARE = 0.05
METRIC_SHARE = 0.005


@dataclass(frozen=True)
class Against:
    """A figure and its baseline.

    `interval` contains the noise of both: the 95 % interval of the figure with the baseline taken
    as exact. `why` states why the two cannot be compared.
    """

    value: float | None
    baseline: float | None
    interval: Interval | None = None
    why: str = ""

    def change(self, operator: Operator) -> str:
        """How much worse or better the value is, in words."""
        if self.value is None or self.baseline is None:
            return self.why
        rise = self.value - self.baseline
        worse = rise if operator == "<=" else -rise
        share = f"{abs(worse / self.baseline):.1%} " if self.baseline else ""
        return f"{share}{'worse' if worse > 0 else 'better'} than {self.baseline:.6g} before"


def against(
    new: EvalResult, old: EvalResult, figure: str, factor: float = 1.0, domain: str | None = None
) -> Against:
    """`figure` of `new` against `factor` times that of `old`.

    Means over tokens are compared by paired differences of documents, speeds by the ratio of
    medians, all else by value. A `domain` restricts the documents to one domain.
    """
    head = figure.partition(".")[0]
    value, was = figure_value(new, figure).value, figure_value(old, figure).value
    if not isinstance(value, int | float) or not isinstance(was, int | float):
        missing = "not measured" if value is None else "the baseline does not contain it"
        return Against(_number(value), _number(was), why=missing)
    limit = was * factor
    if is_quality(figure):
        return _paired(new, old, figure, factor, domain)
    if head == "tasks":
        return _answered(new, old, figure, Against(value, limit))
    if head == "speed":
        return _timed(new, old, figure, Against(value, limit))
    if figure == "memory.host_peak_rss_bytes" and (why := _other_machine(new, old)):
        return Against(value, limit, why=why)
    return Against(value, limit, (value, value))


def allowances(new: EvalResult, old: EvalResult) -> Iterator[Allowance]:
    """The allowance of each figure of either result that must not get worse."""
    floors = [r.kl.floor_mean or 0.0 for r in (new, old) if r.kl]
    for a in (*QUALITY_ALLOWANCES, *SIZE_ALLOWANCES, *MEMORY_ALLOWANCES):
        if figure_value(new, a.figure).value is None and figure_value(old, a.figure).value is None:
            continue
        if a.figure == "kl.mean":
            yield Allowance(a.figure, a.operator, a.share, FLOOR_FACTOR * max(floors, default=0.0))
        else:
            yield a
    for name, metric in {**old.metrics, **new.metrics}.items():
        if name in new.documents.sums or name in old.documents.sums:
            yield Allowance(name, "<=" if metric.better == "lower" else ">=", share=METRIC_SHARE)
    for figure in dict.fromkeys((*_speeds(old), *_speeds(new))):
        yield Allowance(figure, ">=", share=SPEED_SHARE)

    for name in dict.fromkeys(task.name for task in (*old.tasks, *new.tasks)):
        yield Allowance(f"tasks.{name}.accuracy", ">=")


def _speeds(result: EvalResult) -> Iterator[str]:
    for cell in result.speed.local:
        for name in ("prefill_tokens_per_s", "decode_tokens_per_s"):
            if getattr(cell, name) is not None:
                yield f"speed.b{cell.batch}x{cell.context_tokens}.{name}"
    for load in result.speed.engine:
        yield f"speed.c{load.concurrency}.output_tokens_per_s"


def _paired(
    new: EvalResult, old: EvalResult, figure: str, factor: float, domain: str | None
) -> Against:
    """Paired document differences; perplexities by the difference of their logarithms."""
    value, was = _number(figure_value(new, figure).value), _number(figure_value(old, figure).value)
    apart = Against(value, None if was is None else was * factor, why=_unpaired(new, old, figure))
    if apart.why:
        return apart
    documents = new.documents
    keep = [i for i, name in enumerate(documents.domain) if domain in (None, name)]
    ours, theirs = (document_sums(r.documents, figure) for r in (new, old))
    counts = [documents.n[i] for i in keep]
    domains = [documents.domain[i] for i in keep]
    tokens = sum(counts)
    logarithmic = figure == "perplexity.value"
    scale = 1.0 if logarithmic else factor
    differences = [ours[i] - scale * theirs[i] for i in keep]
    change = stratified_mean(differences, counts, domains)
    mean = scale * sum(theirs[i] for i in keep) / tokens
    low, middle, high = (mean + d for d in (change.interval[0], change.value, change.interval[1]))
    if not logarithmic:
        return Against(middle, mean, (low, high))
    return Against(math.exp(middle), math.exp(mean) * factor, (math.exp(low), math.exp(high)))


def _unpaired(new: EvalResult, old: EvalResult, figure: str) -> str:
    """Why the documents of two results cannot be paired; empty if they can."""
    scored = [(r.protocol.name, r.protocol.tokens_sha256) for r in (new, old)]
    originals = [r.reference.sha256 if r.reference else None for r in (new, old)]
    documents = [(r.documents.id, r.documents.n) for r in (new, old)]
    sums = all(len(document_sums(r.documents, figure)) for r in (new, old))
    faults = {
        "the baseline was scored on other tokens": scored[0] != scored[1],
        "it has no paired error; try: kl.mean": figure not in BY_DOMAIN
        and figure not in (*new.metrics, *old.metrics),
        "the baseline was measured against another reference": figure != "perplexity.value"
        and originals[0] != originals[1],
        "one of the two results has no sums per document": not sums,
        "the baseline has other documents": documents[0] != documents[1],
        "one of the two results is invalid": "invalid" in (new.status, old.status),
    }
    return next((why for why, there in faults.items() if there), "")


def _answered(new: EvalResult, old: EvalResult, figure: str, apart: Against) -> Against:
    """Accuracies compared by paired answers; recovery is their ratio and not compared."""
    name = figure.split(".")[1]
    ours, theirs = (next((t for t in r.tasks if t.name == name), None) for r in (new, old))
    if not figure.endswith(".accuracy") or ours is None or theirs is None:
        return replace(apart, why="it has no paired error; try: tasks.NAME.accuracy")
    interval = accuracy_beside(ours, theirs)
    return replace(apart, interval=interval, why="" if interval else "the questions differ")


def _timed(new: EvalResult, old: EvalResult, figure: str, apart: Against) -> Against:
    """The ratio of medians, from the ends of both intervals.

    This is wider than a 95 % interval on purpose: two runs of one build differ by more than the
    repeats of one run show. A build counts as slower if the two intervals do not overlap.
    """
    cell = figure.split(".")[1]
    ours, theirs = speed_cell(new, cell), speed_cell(old, cell)
    why = _other_machine(new, old) or _other_kernel(ours, theirs)
    now, before = figure_value(new, figure).interval, figure_value(old, figure).interval
    if not why and (now is None or before is None):
        why = "it has no interval"
    if why or now is None or before is None or min(now[0], before[0]) <= 0:
        return Against(apart.value, apart.baseline, why=why or "its interval reaches zero")
    was = figure_value(old, figure).value
    assert isinstance(was, float)
    return replace(apart, interval=(now[0] * was / before[1], now[1] * was / before[0]))


def _other_machine(new: EvalResult, old: EvalResult) -> str:
    ours, theirs = ([r.environment.get(key) for key in MACHINE] for r in (new, old))
    if not any(ours) or not any(theirs):
        return "one of the results does not name its machine"
    return "" if ours == theirs else "the machines differ"


def _other_kernel(
    ours: LocalSpeed | EngineSpeed | None, theirs: LocalSpeed | EngineSpeed | None
) -> str:
    if isinstance(ours, LocalSpeed) and isinstance(theirs, LocalSpeed):
        same = (ours.kernel, ours.threads) == (theirs.kernel, theirs.threads)
        return "" if same else "the kernels or numbers of threads differ"
    if isinstance(ours, EngineSpeed) and isinstance(theirs, EngineSpeed):
        lengths = [(c.engine, c.kernel, c.input_tokens, c.output_tokens) for c in (ours, theirs)]
        same = lengths[0] == lengths[1]
        return "" if same else "the engines, kernels or lengths of requests differ"
    return "the engines differ"


def _number(value: float | str | None) -> float | None:
    return value if isinstance(value, int | float) else None
