"""Keys and values as a cache in e4m3 holds them, and the scales that are tried for them.

An engine computes e4m3(x / scale) * scale. The grid of e4m3 repeats at each octave over 17 of them,
so scales that clip nothing differ by where in an octave the values fall, hardly by their size.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import frexp

import torch

from quantkit.grid.activation import fp8_per_tensor
from quantkit.grid.minifloat import EIGHT

LEAST = 2.0**-14
"""The smallest scale: fp16's least normal number, as transformers reads scales in the model's."""
PHASES = 8
"""Scales of an octave that are tried; one of them is a power of two."""


@dataclass(frozen=True)
class CacheScales:
    """The scales of an attention's keys and values, of which bf16 has both."""

    key: float
    value: float

    def change(self, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Both as the cache gives them back, (sequences, KV heads, length, width)."""
        return rounded(key, self.key), rounded(value, self.value)


def rounded(states: torch.Tensor, scale: float) -> torch.Tensor:
    """Copy of `states` (any shape) as the cache gives them back."""
    return fp8_per_tensor(states, scale=torch.tensor(scale, device=states.device))


def spanning(largest: float) -> float:
    """The least scale that clips no magnitude up to `largest`."""
    return _storable(largest / EIGHT.largest) if largest > 0 else 1.0


def candidates(largest: float) -> list[float]:
    """The scales that are tried for magnitudes up to `largest`, all of which clip none of them.

    First that which spans them, then the phases of the octave above it, and 1.
    """
    least = spanning(largest)
    _, exponent = frexp(least)
    octaves = (2.0 ** (exponent + step / PHASES) for step in range(-PHASES, PHASES))
    phases = [scale for scale in map(_storable, octaves) if least < scale <= 2 * least]
    return [least, *phases, *([1.0] if least < 1 else [])]


def _storable(scale: float) -> float:
    """The next number that bf16 has too: engines hold scales in fp32 or the model's dtype."""
    bits = torch.tensor(max(scale, LEAST)).view(torch.int32)
    return ((bits + 0xFFFF) & ~0xFFFF).view(torch.float32).item()
