"""What was seen at the input of a group of linears."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class InputStats:
    """Statistics of the inputs x of a group over `tokens` calibration tokens, fp32.

    hessian: (in_features, in_features), the sum over tokens of x x^T; no factor 2 or 1/n.
    sink: (in_features, in_features), the mean of x x^T over the first tokens of the sequences.
    absmax: (in_features,), the largest |x| per channel.
    sample: (m, in_features), m evenly spaced tokens as they were.
    mixes_tokens: whether a linear of the group feeds other positions (keys and values do).
    """

    hessian: torch.Tensor
    sink: torch.Tensor
    absmax: torch.Tensor
    sample: torch.Tensor
    tokens: int
    sequences: int
    mixes_tokens: bool

    @property
    def diagonal(self) -> torch.Tensor:
        """(in_features,), the sum over tokens of x_j^2."""
        return self.hessian.diagonal()
