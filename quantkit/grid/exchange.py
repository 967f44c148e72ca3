"""How ranks pass tensors to each other, over torch.distributed; alone they pass nothing."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.distributed as group

from quantkit.core.ranks import Ranks


class Place(NamedTuple):
    """What stands for a tensor where values are described."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    kind: str

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "Place":
        """Shape, dtype, and kind of device of a tensor."""
        return cls(tuple(tensor.shape), tensor.dtype, tensor.device.type)

    def empty(self) -> torch.Tensor:
        """Room for such a tensor, on this rank's device of that kind."""
        return torch.empty(self.shape, dtype=self.dtype, device=self.kind)


def exchange(ranks: Ranks, value: Any) -> list[Any]:
    """Each rank's value in their order; in dataclasses, lists, tuples and dicts are tensors."""
    return deal(ranks, [value] * ranks.count)


def deal(ranks: Ranks, values: Sequence[Any]) -> list[Any]:
    """What each rank has for this one, in their order, given what this one has for each."""
    if ranks.alone:
        return list(values)
    going: list[list[torch.Tensor]] = [[] for _ in values]
    described = [_described(value, kept) for value, kept in zip(values, going, strict=True)]
    known: list[Any] = [None] * ranks.count
    group.all_gather_object(known, described)
    found, transfers = list(values), []
    for other in range(ranks.count):
        if other != ranks.rank:
            coming: list[torch.Tensor] = []
            found[other] = _with_room(known[other][ranks.rank], coming)
            for act, tensors in ((group.isend, going[other]), (group.irecv, coming)):
                moved = (_bytes(tensor) for tensor in tensors if tensor.numel())
                transfers += [group.P2POp(act, each, other) for each in moved]
    for transfer in group.batch_isend_irecv(transfers) if transfers else ():
        transfer.wait()
    return found


def stream(
    ranks: Ranks, tensors: Sequence[torch.Tensor], device: torch.device | None = None
) -> Iterator[torch.Tensor]:
    """Every rank's tensors, in the order of the ranks, one at a time; all must take each.

    They come to `device`, or lie where they lay.
    """
    if ranks.alone:
        yield from (tensor.to(device or tensor.device) for tensor in tensors)
        return
    known: list[Any] = [None] * ranks.count
    group.all_gather_object(known, [Place.of(tensor) for tensor in tensors])
    for source, places in enumerate(known):
        for index, place in enumerate(places):
            mine = source == ranks.rank
            there = place._replace(kind=device.type if device else place.kind)
            tensor = tensors[index].to(there.kind).contiguous() if mine else there.empty()
            if tensor.numel():
                group.broadcast(_bytes(tensor), source)
            yield tensor


def _described(value: Any, tensors: list[torch.Tensor]) -> Any:
    """`value` with places for its tensors, which are added to `tensors`."""

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
    return tensor.flatten().view(torch.uint8)
