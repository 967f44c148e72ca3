"""What was seen at the input of a group of linears."""

from dataclasses import dataclass

import torch

from quantkit.grid.threads import one_thread


@dataclass(frozen=True)
class InputStats:
    """Statistics of the inputs x of a group over `tokens` calibration tokens, fp32.

    hessian: (in_features, in_features), the sum over tokens of x x^T; no factor 2 or 1/n.
    firsts: (sequences, in_features), the first token of each sequence.
    absmax: (in_features,), the largest |x| per channel.
    sample: (m, in_features), m evenly spaced tokens as they were.
    mixes_tokens: whether a linear of the group feeds other positions (keys and values do).
    """

    hessian: torch.Tensor
    firsts: torch.Tensor
    absmax: torch.Tensor
    sample: torch.Tensor
    tokens: int
    mixes_tokens: bool

    @property
    def diagonal(self) -> torch.Tensor:
        """(in_features,), the sum over tokens of x_j^2."""
        return self.hessian.diagonal()

    @one_thread()
    def attended(self, sink: float) -> torch.Tensor:
        """The Hessian, with first tokens weighing as attended to where the group feeds others.

        Together they then weigh `sink` times as much as all tokens: queries look at them far more
        often than at any other, so that errors of their keys and values reach every position.
        """
        if not sink or not self.mixes_tokens:
            return self.hessian
        weight = sink * self.tokens / len(self.firsts)
        return torch.addmm(self.hessian, self.firsts.T, self.firsts, alpha=weight)
