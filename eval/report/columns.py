"""The columns of the table of all builds, the same for page, Markdown and CSV."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import exp

from quantkit.eval.report.numbers import (
    duration,
    error,
    grouped,
    percent,
    signed_percent,
    significant,
    unit_of,
    visible,
)
from quantkit.eval.report.study import Build, Study, Target
from quantkit.results.schema import EvalResult, LocalSpeed


@dataclass(frozen=True)
class Cell:
    """What is shown, its error beside it, and the number to sort by (None: not measured)."""

    text: str = ""
    error: str = ""
    value: float | None = None


@dataclass(frozen=True)
class Column:
    """A figure of each build; `hidden` names the screens too narrow for it.

    `field` is the name in CSV and JSON, with its unit; `falls` says that more is better, so that
    the first click on the header sorts downwards.
    """

    field: str
    title: str
    unit: str
    cell: Callable[[Build], Cell]
    hidden: str = ""
    falls: bool = False


NOTHING = Cell()
PLAIN = ("number", "fraction")
"""Units that a heading does not show."""


def columns(study: Study, target: Target) -> list[Column]:
    """Those of which at least one build has a figure."""
    found = [*_sizes(study, target), *_quality(), *_metrics(study), *_speed(study)]
    return [c for c in found if any(c.cell(b).value is not None for b in study.everything)]


def _sizes(study: Study, target: Target) -> list[Column]:
    unit, factor = unit_of([build.disk_bytes for build in study.everything])

    def size(count: float | None) -> Cell:
        if count is None:
            return NOTHING
        return Cell(significant(count / factor), value=count)

    def own_bits(build: Build) -> Cell:
        subject = build.result.artifact if build.result else None
        return _plain(subject.quantized_bits_per_weight if subject else None)

    def whole_bits(build: Build) -> Cell:
        return _plain(build.result.artifact.bits_per_weight if build.result else None)

    def memory(build: Build) -> Cell:
        return size(study.size_at(build, target)) if target.axis == "memory" else NOTHING

    def context(build: Build) -> Cell:
        room = study.longest_context(build, target)
        return NOTHING if room is None else Cell(grouped(room) if room else "none", value=room)

    return [
        Column("quantized_bits_per_weight", "Bits", "quantized linears", own_bits, "middle"),
        Column("bits_per_weight", "Bits", "whole model", whole_bits, "wide"),
        Column("bytes", "On disk", unit, lambda b: size(b.disk_bytes), "wide"),
        Column("memory_bytes", "Memory", unit, memory),
        Column("longest_context_tokens", "Longest context", "tokens", context, "wide", falls=True),
    ]


def _quality() -> list[Column]:
    return [
        Column("kl_mean_nats", "KL mean", "nats", _kl),
        Column("kl_p99_nats", "KL p99", "nats", _p99, "wide"),
        Column("top1_agreement", "Same top token", "", _top1, falls=True),
        Column("perplexity", "Perplexity", "", _perplexity, "middle"),
        Column("task_recovery", "Task recovery", "", _recovery, falls=True),
        Column("flips", "Flips", "", _flips, "middle"),
    ]


def _metrics(study: Study) -> list[Column]:
    """The figures of registered metrics that have no column of their own."""
    stated = {
        name: figure
        for build in study.everything
        if build.measured
        for name, figure in build.measured.metrics.items()
    }
    return [
        Column(
            re.sub(r"\W", "_", name),
            visible(figure.label),
            "" if figure.unit in PLAIN else visible(figure.unit),
            partial(_metric, name),
            "middle",
            falls=figure.better == "higher",
        )
        for name, figure in stated.items()
    ]


def _metric(name: str, build: Build) -> Cell:
    found = build.measured.metrics.get(name) if build.measured else None
    if found is None or found.value is None:
        return NOTHING
    scale = 100 if found.unit == "fraction" else 1
    half = (found.ci95[1] - found.ci95[0]) / 2 if found.ci95 else None
    text = percent(found.value) if scale == 100 else significant(found.value)
    return Cell(text, "" if half is None else error(scale * half), found.value)


def _speed(study: Study) -> list[Column]:
    loads = [e.concurrency for b in study.everything for e in _speeds(b)]
    highest = max(loads, default=0)

    def output(build: Build) -> Cell:
        found = [e for e in _speeds(build) if e.concurrency == highest]
        return _plain(found[0].output_tokens_per_s) if found else NOTHING

    prefill = Column("prefill_tokens_per_s", "Prefill", "tok/s", _prefill, "middle", falls=True)
    served = Column("output_tokens_per_s", "Output", f"tok/s, {highest} req", output, falls=True)
    less = "middle" if loads else ""  # an engine's figures go before those of this process
    decode = Column("decode_tokens_per_s", "Decode", "tok/s", _decode, less, falls=True)
    return [
        *([served, decode] if loads else [prefill, decode]),
        Column(
            "seconds",
            "Run time",
            "",
            lambda b: NOTHING if b.seconds is None else Cell(duration(b.seconds), value=b.seconds),
            "wide",
        ),
    ]


def local_speed(result: EvalResult | None) -> LocalSpeed | None:
    """The measured cell of the smallest batch: what one reader at a desk feels."""
    cells = [cell for cell in result.speed.local if not cell.fault] if result else []
    return min(cells, key=lambda cell: (cell.batch, cell.context_tokens), default=None)


def _speeds(build: Build) -> list:  # type: ignore[type-arg]
    return build.measured.speed.engine if build.measured else []


def _plain(value: float | None) -> Cell:
    return NOTHING if value is None else Cell(significant(value), value=value)


def _kl(build: Build) -> Cell:
    if build.kl is None or build.kl.mean is None:
        return NOTHING
    half = build.kl_half_width
    return Cell(significant(build.kl.mean), "" if half is None else error(half), build.kl.mean)


def _p99(build: Build) -> Cell:
    return _plain(build.kl.p99 if build.kl else None)


def _top1(build: Build) -> Cell:
    share = build.measured.top1_agreement if build.measured else None
    return NOTHING if share is None else Cell(percent(share), value=share)


def _perplexity(build: Build) -> Cell:
    found = build.measured.perplexity if build.measured else None
    if found is None or found.value is None:
        return NOTHING
    if found.log_ratio is None:
        return Cell(significant(found.value, 4), value=found.value)
    change = exp(found.log_ratio) - 1
    interval = found.log_ratio_ci95
    half = (exp(interval[1]) - exp(interval[0])) / 2 if interval else None
    spread = "" if half is None else error(100 * half)
    return Cell(signed_percent(change), spread, found.value)


def _recovery(build: Build) -> Cell:
    tasks = build.measured.tasks if build.measured else []
    if not tasks:
        return NOTHING
    mean = sum(task.recovery for task in tasks) / len(tasks)
    halves = [(t.recovery_ci95[1] - t.recovery_ci95[0]) / 2 for t in tasks if t.recovery_ci95]
    spread = ""
    if len(halves) == len(tasks):
        spread = error(100 * sum(half**2 for half in halves) ** 0.5 / len(tasks))
    return Cell(percent(mean), spread, mean)


def _flips(build: Build) -> Cell:
    tasks = build.measured.tasks if build.measured else []
    if not tasks:
        return NOTHING
    flips = sum(task.right_to_wrong + task.wrong_to_right for task in tasks)
    share = flips / sum(task.questions for task in tasks)
    return Cell(percent(share, 2), value=share)


def _prefill(build: Build) -> Cell:
    cell = local_speed(build.measured)
    return _plain(cell.prefill_tokens_per_s if cell else None)


def _decode(build: Build) -> Cell:
    cell = local_speed(build.measured)
    return _plain(cell.decode_tokens_per_s if cell else None)
