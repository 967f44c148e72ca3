"""The processes that quantize one model together, and how they pass tensors to each other.

Work is dealt out so that no result depends on how many there are: each number is computed by one
rank, from the same inputs in the same order and by products of the same shape as one rank alone
would take. Sums are never split among ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch


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

    def exchange(self, value: Any) -> list[Any]:
        """Each rank's value in their order; in dataclasses, lists, tuples and dicts are tensors."""
        return self.deal([value] * self.count)

    def deal(self, values: Sequence[Any]) -> list[Any]:
        """What each rank has for this one, in their order, given what this one has for each."""
        if self.alone:
            return list(values)
        import torch.distributed as group

        going: list[list[torch.Tensor]] = [[] for _ in values]
        described = [_described(value, kept) for value, kept in zip(values, going, strict=True)]
        known: list[Any] = [None] * self.count
        group.all_gather_object(known, described)
        found, transfers = list(values), []
        for other in range(self.count):
            if other != self.rank:
                coming: list[torch.Tensor] = []
                found[other] = _with_room(known[other][self.rank], coming)
                for act, tensors in ((group.isend, going[other]), (group.irecv, coming)):
                    moved = (_bytes(tensor) for tensor in tensors if tensor.numel())
                    transfers += [group.P2POp(act, each, other) for each in moved]
        for transfer in group.batch_isend_irecv(transfers) if transfers else ():
            transfer.wait()
        return found

    def stream(self, tensors: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
        """Every rank's tensors, in the order of the ranks, one at a time; all must take each."""
        if self.alone:
            yield from tensors
            return
        import torch.distributed as group

        known: list[Any] = [None] * self.count
        group.all_gather_object(known, [Place.of(tensor) for tensor in tensors])
        for source, places in enumerate(known):
            for index, place in enumerate(places):
                mine = source == self.rank
                tensor = tensors[index].contiguous() if mine else place.empty()
                if tensor.numel():
                    group.broadcast(_bytes(tensor), source)
                yield tensor


ALONE = Ranks()


class Place(NamedTuple):
    """What stands for a tensor where values are described."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    kind: str

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Place:
        """Shape, dtype, and kind of device of a tensor."""
        return cls(tuple(tensor.shape), tensor.dtype, tensor.device.type)

    def empty(self) -> torch.Tensor:
        """Room for such a tensor, on this rank's device of that kind."""
        import torch

        return torch.empty(self.shape, dtype=self.dtype, device=self.kind)


def _described(value: Any, tensors: list[torch.Tensor]) -> Any:
    """`value` with places for its tensors, which are added to `tensors`."""
    import torch

    def place(tensor: torch.Tensor) -> Place:
        tensors.append(tensor.contiguous())
        return Place.of(tensor)

    return _each(value, torch.Tensor, place)


def _with_room(value: Any, tensors: list[torch.Tensor]) -> Any:
    """`value` with new tensors in its places, which are added to `tensors`."""

    def room(place: Place) -> torch.Tensor:
        tensors.append(place.empty())
        return tensors[-1]

    return _each(value, Place, room)


def _each(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """`value` with all that is of a `kind` in it changed."""
    if isinstance(value, kind):
        return change(value)
    if is_dataclass(value) and not isinstance(value, type):
        parts = {f.name: _each(getattr(value, f.name), kind, change) for f in fields(value)}
        return replace(value, **parts)
    if isinstance(value, (list, tuple)):
        return type(value)(_each(part, kind, change) for part in value)
    if isinstance(value, dict):
        return {key: _each(part, kind, change) for key, part in value.items()}
    return value


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor as its bytes, which every backend can send."""
    import torch

    return tensor.flatten().view(torch.uint8)
