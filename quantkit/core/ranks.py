"""The processes that quantize one model together, and how work is dealt out to them.

No result depends on how many there are: each number is computed by one rank, from the same inputs
in the same order and by products of the same shape as one rank alone would take. Sums are never
split among ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Ranks:
    """This process, `rank`, of `count` ones; torch.distributed connects more than one."""

    rank: int = 0
    count: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process writes, evaluates and reports."""
        return self.rank == 0

    @property
    def alone(self) -> bool:
        """Whether there are no others."""
        return self.count == 1

    def owners(self, costs: Sequence[int]) -> list[int]:
        """The rank of each item; the dearest are dealt out first, each to whom has least so far."""
        loads = [0] * self.count
        found = [0] * len(costs)
        for item in sorted(range(len(costs)), key=lambda i: -costs[i]):
            found[item] = loads.index(min(loads))
            loads[found[item]] += costs[item]
        return found

    def slice_of(self, total: int) -> slice:
        """The contiguous items of `total` that are this rank's."""
        return slice(self.rank * total // self.count, (self.rank + 1) * total // self.count)


ALONE = Ranks()
