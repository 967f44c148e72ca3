"""The contract of a metric: scores of tokens in, named figures out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch

from quantkit.eval.text import ScoredDocument
from quantkit.results.estimate import Estimate, Floats, stratified_mean

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
class Metric:
    """One metric.

    measure(scores): the figures by their names in `quantkit.results.schema.EvalResult`; none where
    the scores it needs (a reference, say) are not there. A figure that is not finite means that the
    scores were not.
    """

    name: str
    summary: str
    unit: str
    better: Literal["lower", "higher"]
    measure: Callable[[Scores], Figures]
