"""Numbers that a table lists."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Table:
    """`listed` numbers in ascending order, 256 at most, with the codes from `first` on."""

    listed: tuple[float, ...]
    first: int = 0

    @property
    def largest(self) -> float:
        """The largest magnitude."""
        return max(-self.listed[0], self.listed[-1])

    def round(self, values: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """The nearest numbers to fp32 `values` (any shape) in `out`, which may be the values."""
        return out.copy_(self.values(self.codes(values)))

    def codes(self, numbers: torch.Tensor) -> torch.Tensor:
        """uint8 codes of the nearest numbers to fp32 ones of any shape."""
        table = torch.tensor(self.listed, device=numbers.device)
        found = torch.bucketize(numbers, (table[1:] + table[:-1]) / 2, out_int32=True)
        return found.add_(self.first).to(torch.uint8)

    def values(self, codes: torch.Tensor) -> torch.Tensor:
        """fp32 numbers of uint8 codes of any shape."""
        return torch.tensor(self.listed, device=codes.device)[codes.int() - self.first]
