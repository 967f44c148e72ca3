"""Tensors as `verify` looks at them: one quantized weight, or a slice of another tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from math import ceil, nan
from typing import Literal, Protocol

import torch

from quantkit.checkpoint.checkpoint import Checkpoint
from quantkit.checkpoint.lent import Loan, Memory
from quantkit.checkpoint.stored import TensorInfo
from quantkit.checkpoint.threads import in_order
from quantkit.core.errors import QuantkitError
from quantkit.core.facts import LinearFacts
from quantkit.core.scheme import Scheme
from quantkit.grid.digest import codes_sha256
from quantkit.grid.qtensor import QTensor

PIECE = 16 * 2**20
"""Bytes of a tensor that are in memory at a time."""
SAMPLE = 2**17
"""Codes of integers that are decoded where there is nothing to compare them with."""
WHOLE = 32
"""Outputs whose codes fill whole words, whatever their bits."""
SCALES = ("scales", "weight_scale", "weight.absmax", "weight_scale_inv")
SUSPECT = 8.0
"""Squared error over that of rounding to nearest from which on a cause is looked for: most methods
stay below 4, and a zero point that is off by one is at 13."""
FEW = 64
"""Values that show that a tensor is not constant, as a rule."""
WRONG = 40.0
"""The same of a weight without a known cause: methods that weigh inputs may clip all others."""
Reference = Callable[[QTensor], bool]
"""Whether a weight is the one that was written, or near enough to the original one."""


@dataclass(frozen=True)
class StoredWeight:
    """One quantized weight with all its tensors in memory.

    `names`: the stored name of each part. `scheme` None: it is in floats with scales whose layout
    only headers state, and `decode` gives it dense. `digest` is that of the manifest; `digests`
    those of all its weights, by digest. `beside` compares it with the original. `ordered`: the
    config says that groups are in another order than the inputs.

    Integers without anything to compare them with are decoded for a few outputs: what is impossible
    shows in the stored tensors. `decode(outputs)`: of the first outputs, or of all.
    """

    name: str
    tensors: Mapping[str, torch.Tensor]
    names: Mapping[str, str]
    scheme: Scheme | None
    facts: LinearFacts | None
    format: str | None
    decode: Callable[[int | None], QTensor | torch.Tensor]
    digest: str | None = None
    digests: Mapping[str, str] | None = None
    beside: Comparison | None = None
    ordered: bool = False

    @property
    def _outputs(self) -> int | None:
        """Outputs that are decoded; None: all."""
        if self.scheme is None or self.scheme.grid != "int" or self.facts is None:
            return None
        some = ceil(SAMPLE / self.facts.in_features / WHOLE) * WHOLE
        return None if some >= self.facts.out_features or self.reference is not None else some

    @cached_property
    def _decoded(self) -> QTensor | torch.Tensor | QuantkitError:
        try:
            return self.decode(self._outputs)
        except QuantkitError as error:
            return error

    @cached_property
    def whole(self) -> QTensor | None:
        """As `qtensor`, of all outputs."""
        if self._outputs is None or self.qtensor is None:
            return self.qtensor
        found = self.decode(None)
        return found if isinstance(found, QTensor) else None

    @property
    def scales(self) -> torch.Tensor | None:
        """The stored scales, whatever the format calls them."""
        return next((self.tensors[name] for name in SCALES if name in self.tensors), None)

    @cached_property
    def scale_range(self) -> tuple[float, float]:
        """The least and the greatest of the stored scales, wider than 8 bits; NaN if one is."""
        if self.scales is None or self.scales.itemsize == 1 or not self.scales.numel():
            return nan, nan
        least, greatest = self.scales.aminmax()
        return float(least), float(greatest)

    @property
    def error(self) -> QuantkitError | None:
        """Why it cannot be decoded; None where it can."""
        return self._decoded if isinstance(self._decoded, QuantkitError) else None

    @property
    def qtensor(self) -> QTensor | None:
        """Its codes and scales, or those of a few outputs; None where it has none."""
        return self._decoded if isinstance(self._decoded, QTensor) else None

    @property
    def dense(self) -> torch.Tensor | None:
        """The weight that a coded one is decoded to; None where it has codes and a scheme."""
        return self._decoded if isinstance(self._decoded, torch.Tensor) else None

    @cached_property
    def found_digest(self) -> str | None:
        """The hash of its codes and scales."""
        return None if self.qtensor is None else codes_sha256(self.qtensor)

    @cached_property
    def is_wrong(self) -> bool:
        """Whether it is known not to be the weight that it should be."""
        return (
            self.qtensor is not None
            and self.reference is not None
            and not self.reference(self.qtensor)
        )

    @property
    def reference(self) -> Reference | None:
        """What tells whether a weight in the place of this one would be right."""
        if self.digest is not None:
            return lambda qtensor: codes_sha256(qtensor) == self.digest
        return self.beside.is_near if self.beside is not None else None


@dataclass(frozen=True)
class Comparison:
    """A weight beside the original's, however that is stored.

    `near(weight, scheme, slack)`: a sentence that says how far a weight, fp32 (out, in), is from
    the original beyond so many times what its scheme explains; None where it is not.
    `like(weight)`: the name of another linear of the original that it is near.
    """

    near: Callable[[torch.Tensor, Scheme | None, float], str | None]
    like: Callable[[torch.Tensor], str | None]

    def is_near(self, qtensor: QTensor) -> bool:
        """Whether a weight is as near as its scheme lets it be."""
        return self.near(qtensor.dequantize(), qtensor.scheme, SUSPECT) is None


class Original(Protocol):
    """The model that a folder was made of, as its tensors are compared with it."""

    def comparison(self, path: str) -> Comparison | None:
        """How the weight of linear `path` is compared; None where there is none."""

    def dense_original(self, name: str) -> Iterator[torch.Tensor] | None:
        """Slices of the original of a stored tensor; None where it is stored otherwise."""

    def undone(self, name: str) -> bool:
        """Whether a changed vector of a block is one that its linears undo."""


@dataclass(frozen=True)
class DenseTensor:
    """A tensor that is stored as numbers, read in slices; `kind`: what it is of.

    `original` gives the slices of the original; `undone` whether others undo a difference.
    """

    name: str
    info: TensorInfo
    checkpoint: Checkpoint
    kind: Literal["weight", "other"] = "weight"
    original: Callable[[], Iterator[torch.Tensor] | None] | None = None
    undone: Callable[[], bool] | None = None

    def pieces(self) -> Iterator[torch.Tensor]:
        """Its slices along the first dimension; each may be used until the next."""
        yield from pieces_of(self.checkpoint, self.name, self.info)

    @cached_property
    def seen(self) -> Seen:
        """What one reading of it shows."""
        total, odd, value, equal = 0, 0, None, True
        for piece in self.pieces():
            flat = piece.flatten()
            if not flat.numel():
                continue
            total += flat.numel()
            odd += _not_finite(flat)
            value = float(flat[0]) if value is None else value
            equal = equal and not bool((flat[:FEW] != value).any() or (flat != value).any())
        return Seen(total, odd, value if equal else None)


@dataclass(frozen=True)
class Seen:
    """Of a tensor's values: how many, how many that are NaN or infinity, and the one of all."""

    total: int
    odd: int
    only: float | None


def _not_finite(values: torch.Tensor) -> int:
    if not values.is_floating_point():
        return 0
    wide = values if values.itemsize > 1 else values.to(torch.bfloat16)
    if bool(torch.isfinite(torch.stack(wide.aminmax())).all()):
        return 0  # the usual case, in one pass
    return int((~torch.isfinite(wide)).sum())


def pieces_of(checkpoint: Checkpoint, name: str, info: TensorInfo) -> Iterator[torch.Tensor]:
    """Slices of a stored tensor along its first dimension, at most PIECE bytes each.

    The next one is read meanwhile, into memory that slices share: one may be used until the next.
    """
    if not info.shape or info.nbytes <= PIECE:
        yield checkpoint.tensor(name)
        return
    rows = max(1, PIECE * info.shape[0] // info.nbytes)
    memory = Memory()
    starts = range(0, info.shape[0], rows)
    slices = [slice(start, min(start + rows, info.shape[0])) for start in starts]
    for piece, loan in in_order(partial(_piece, checkpoint, name, memory), slices, 2):
        yield piece
        loan.end()


def _piece(
    checkpoint: Checkpoint, name: str, memory: Memory, part: slice
) -> tuple[torch.Tensor, Loan]:
    loan = Loan(memory)
    return checkpoint.lending(loan).tensor(name, part), loan
