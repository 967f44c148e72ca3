"""Weights through a method, with the grid of a scheme for them."""

from typing import Any

import torch

from quantkit.core.grid import rounding_of
from quantkit.core.method import Solved
from quantkit.core.scheme import Scheme
from quantkit.stats.inputs import InputStats


def quantized(
    method: Any,
    weights: list[torch.Tensor],
    stats: InputStats | None,
    scheme: Scheme,
    dtype: torch.dtype,
    options: Any,
) -> list[Solved]:
    """`quantize` of a method or its file."""
    grid = rounding_of(scheme, dtype, weights)
    found: list[Solved] = method.quantize(weights, stats, scheme, grid, options)
    return found


def rescaled(
    method: Any, weights: list[torch.Tensor], stats: InputStats, scheme: Scheme, options: Any
) -> torch.Tensor | None:
    """`rescale` of a method or its file."""
    grid = rounding_of(scheme, torch.float32, weights)
    found: torch.Tensor | None = method.rescale(weights, stats, scheme, grid, options)
    return found
