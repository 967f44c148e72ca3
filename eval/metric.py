"""The contract of a metric: scores of tokens in, named figures out."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import torch

from quantkit.core import registry
from quantkit.core.limit import Dimension
from quantkit.eval.text import ScoredDocument
from quantkit.results.bootstrap import mean_interval
from quantkit.results.estimate import Estimate, Floats, stratified_mean
from quantkit.results.schema import EvalResult

Figures = dict[str, Any]


@dataclass(frozen=True)
class Scores:
    """Scores of every scored token of a text, of a model and of its reference if there is one.

    All tensors are (tokens,), documents one after the other; logarithms are natural. `nll` is fp32,
    `document` the int64 index in `documents`, `context` the int64 number of preceding tokens.
    `beside` is empty without a reference; else it has fp32 or fp64 tensors: the reference's `nll`,
    `kl`, `agreement` (1 or 0), `confidence` (largest probability of the reference), and
    `reverse_kl` for a full reference, or `lower`, `upper` and `variance` of the estimated KL for a
    `topk` one. `floor` is the KL of the reference against itself on a few windows.
    """

    nll: torch.Tensor
    document: torch.Tensor
    context: torch.Tensor
    documents: tuple[ScoredDocument, ...]
    beside: Mapping[str, torch.Tensor]
    floor: torch.Tensor | None = None

    @cached_property
    def domains(self) -> tuple[str, ...]:
        """The domain of each document."""
        return tuple(document.domain for document in self.documents)

    @cached_property
    def counts(self) -> Floats:
        """Number of tokens (documents,) fp64."""
        return self.sums(torch.ones_like(self.nll))

    def sums(self, values: torch.Tensor) -> Floats:
        """Sums (documents,) in fp64 of values (tokens,), in the order of the tokens."""
        weights = values.double().numpy()
        sums = np.bincount(self.document.numpy(), weights, len(self.documents))
        return sums.astype(np.float64, copy=False)

    def mean(self, values: torch.Tensor) -> Estimate:
        """Mean over tokens of values (tokens,), with its standard error over documents."""
        return stratified_mean(self.sums(values), self.counts, self.domains)


@dataclass(frozen=True)
class Figure:
    """Label, unit and better direction of a figure."""

    label: str
    unit: Dimension
    better: Literal["lower", "higher"]

    def __post_init__(self) -> None:
        """Check the figure.

        Raises:
            ValueError: the label is empty, or gates do not support the unit or direction.
        """
        units = [unit for unit in get_args(Dimension) if unit != "text"]
        for what, value, known in (
            ("unit", self.unit, units),
            ("direction", self.better, ["lower", "higher"]),
        ):
            if value not in known:
                raise ValueError(
                    f"figure `{self.label}` has the {what} `{value}`: use one of {', '.join(known)}"
                )
        if not self.label.strip():
            raise ValueError("a figure has no label: tables need one")


@dataclass(frozen=True)
class Metric:
    """One metric.

    `figures`: the figures for gates, baselines, tables and the page, by name: `name` itself, or
    `name.part`.

    measure(scores): values by the names of `figures`: a tensor (tokens,), which is averaged and
    gets a standard error, or a number. Fields of `quantkit.results.schema.EvalResult` may be
    returned by their names, too. Empty if scores that it needs (of a reference) are missing.
    """

    name: str
    summary: str
    figures: Mapping[str, Figure]
    measure: Callable[[Scores], Figures]

    def __post_init__(self) -> None:
        """Check the names of the figures.

        Raises:
            ValueError: no figures, or one whose name does not start with the metric's.
        """
        strange = [name for name in self.figures if name.partition(".")[0] != self.name]
        if strange or not self.figures:
            raise ValueError(
                f"metric `{self.name}` states the figures {strange or 'none'}: "
                f"name them `{self.name}` or `{self.name}.part`"
            )


def metrics() -> Iterator[Metric]:
    """Every registered metric, by name."""
    for name in registry.names("eval.metrics"):
        yield registry.load("eval.metrics", name, "METRIC")


def measure_all(scores: Scores) -> tuple[Figures, dict[str, list[float]]]:
    """The fields of an `EvalResult` that metrics fill, and sums (documents,) by figure.

    Figures without a field of their own are in the field `metrics`; means over tokens have sums.

    Raises:
        ValueError: a metric returns a figure that it does not state.
    """
    fields: Figures = {"metrics": {}}
    sums: dict[str, list[float]] = {}
    for metric in metrics():
        for name, value in metric.measure(scores).items():
            if name in EvalResult.model_fields:
                fields[name] = value
            elif name in metric.figures:
                fields["metrics"][name] = _figure(scores, metric.figures[name], value)
                if isinstance(value, torch.Tensor) and bool(value.isfinite().all()):
                    sums[name] = scores.sums(value).tolist()
            else:
                raise ValueError(
                    f"metric `{metric.name}` measures `{name}`, which its `figures` do not state"
                )
    return fields, sums


def _figure(scores: Scores, figure: Figure, value: torch.Tensor | float) -> Figures:
    """A stored figure (`quantkit.results.schema.MetricFigure`) of values (tokens,) or a number."""
    stated = {"label": figure.label, "unit": figure.unit, "better": figure.better}
    if not isinstance(value, torch.Tensor):
        return {**stated, "value": float(value)}
    mean = scores.mean(value)
    interval = mean_interval(scores.sums(value), scores.counts, scores.domains)
    return {
        **stated,
        "value": mean.value,
        "standard_error": mean.standard_error,
        "ci95": interval,
    }
