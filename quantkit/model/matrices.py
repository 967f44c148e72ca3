"""The weight of a linear as one matrix, however its module stores it."""

import torch
from torch import nn

from quantkit.model.skeleton import is_transposed


def matrix(module: nn.Module) -> torch.Tensor:
    """The weight as contiguous fp32 (out_features, in_features); may share the module's memory."""
    weight: torch.Tensor = module.weight.data  # type: ignore[assignment]  # a Parameter
    return (weight.T if is_transposed(module) else weight).float().contiguous()


def place(module: nn.Module, weight: torch.Tensor) -> None:
    """Copy fp32 `weight` (out_features, in_features) into `module`, rounded to its dtype."""
    data: torch.Tensor = module.weight.data  # type: ignore[assignment]  # a Parameter
    data.copy_(weight.T if is_transposed(module) else weight)
