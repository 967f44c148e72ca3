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
    """What every scored token of a text says of a model, and of its reference if there is one.

    All tensors are (tokens,), in natural logarithms, documents one after the other: `document` is
    the index in `documents` of each, `context` how many tokens the models had seen. Beside a
    reference there are `beside`: its `nll`, `kl`, `agreement` (1 or 0), `confidence` (the
    probability of its likeliest token), and `reverse_kl` where it is known in full, or else `lower`
    and `upper` bounds of the KL and the `variance` of its estimate. `floor` is the KL of the
    reference against itself, on a few windows.
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
        """Tokens of each document."""
        return self.sums(torch.ones_like(self.nll))

    def sums(self, values: torch.Tensor) -> Floats:
        """Sums (documents,) in fp64 of values (tokens,), in the order of the tokens."""
        weights = values.double().numpy()
        sums = np.bincount(self.document.numpy(), weights, len(self.documents))
        return sums.astype(np.float64, copy=False)

    def mean(self, values: torch.Tensor) -> Estimate:
        """Mean over tokens, its error by document and domain."""
        return stratified_mean(self.sums(values), self.counts, self.domains)


@dataclass(frozen=True)
class Figure:
    """How a figure is written and compared: its label, its unit, and which way is better."""

    label: str
    unit: Dimension
    better: Literal["lower", "higher"]

    def __post_init__(self) -> None:
        """Refuse a figure that neither a gate nor a table could write.

        Raises:
            ValueError: no label, or a unit or direction that gates do not know.
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

    `figures` states each figure that gates, baselines, tables and the page may show, by its name
    there: `name` itself, or `name.part`.

    measure(scores): values by the names of `figures`: a tensor (tokens,), of which the mean is
    taken with its error, or a number. What has a field in `quantkit.results.schema.EvalResult` may
    also be given by the name of that field. Nothing where the scores it needs (a reference, say)
    are missing. A figure that is not finite means that the scores were not.
    """

    name: str
    summary: str
    figures: Mapping[str, Figure]
    measure: Callable[[Scores], Figures]

    def __post_init__(self) -> None:
        """Refuse a metric whose figures could not be found by their names.

        Raises:
            ValueError: no figures, or one that is not named for the metric.
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
    """The fields of an `EvalResult` that metrics fill, and sums per document by figure.

    Figures without a field of their own are in the field `metrics`; those that are means over
    tokens have sums.

    Raises:
        ValueError: a metric measures what it does not state.
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
