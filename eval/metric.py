"""The contract of a metric: per-token scores in, named figures out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch

Figure = float | Mapping[str, float]


@dataclass(frozen=True)
class Scores:
    """What every scored position of a text says of a model, and of its reference if there is one.

    All tensors are (windows, positions) in natural logarithms; a position is one predicted token.
    `clusters` names the document of each window: the unit that was drawn at random.
    `floor` is the KL of the reference against itself on a few windows.
    """

    nll: torch.Tensor
    clusters: tuple[int, ...]
    reference_nll: torch.Tensor | None = None
    kl: torch.Tensor | None = None
    agreement: torch.Tensor | None = None
    floor: torch.Tensor | None = None


@dataclass(frozen=True)
class Metric:
    """One metric.

    measure(scores): the figures by their names in the results; none where the scores it needs
    (a reference, say) are not there. A figure that is not finite means that the scores were not.
    """

    name: str
    summary: str
    unit: str
    better: Literal["lower", "higher"]
    measure: Callable[[Scores], dict[str, Figure]]
