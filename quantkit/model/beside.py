"""A folder beside the model that it was made of: how far each weight may be from the original.

Methods may fold scales into a linear that a norm or an earlier linear undoes (AWQ, SmoothQuant).
Such a weight is compared with the original under that scale, which must be found on the other side.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch

from quantkit.core.scheme import Scheme
from quantkit.model.declared import Declared
from quantkit.model.distance import relative, row_factors, too_far
from quantkit.model.skeleton import is_linear, is_transposed
from quantkit.model.stored_weights import WRONG, Comparison, pieces_of

MOVED = 1e-3
"""Least change of a norm that folds a scale."""
FOUND = 0.05
"""Relative difference of a scale that is folded and the one that undoes it."""


@dataclass(frozen=True)
class Beside:
    """An artifact and its source, both opened by what config and headers say."""

    artifact: Declared
    source: Declared

    def comparison(self, path: str) -> Comparison | None:
        """How the weight of linear `path` is compared; None where the source has no such weight."""
        if self.source.model.place(f"{path}.weight") is None and not self._quantized(path):
            return None
        return Comparison(partial(self._near, path), partial(self._like, path))

    def _quantized(self, path: str) -> bool:
        return any(each.path == path for each in self.source.linears)

    def original(self, path: str) -> torch.Tensor:
        """The original weight of a linear, fp32 (out_features, in_features)."""
        return _weight(self.source, path)

    def _near(
        self, path: str, weight: torch.Tensor, scheme: Scheme | None, slack: float
    ) -> str | None:
        original = self.original(path)
        if original.shape != weight.shape:
            return f"has shape {tuple(weight.shape)}, the original's {tuple(original.shape)}"
        sentence = too_far(weight, original, scheme, slack)
        if sentence is None:
            return None
        for scaled in self._scaled(path, weight, original):
            if too_far(weight, scaled, scheme, slack) is None:
                return None
        return sentence

    def _scaled(
        self, path: str, weight: torch.Tensor, original: torch.Tensor
    ) -> Iterator[torch.Tensor]:
        """The original under scales that something else in its block undoes."""
        block = _block(path)
        norms = [original, *(original * t for t in self._ratios(block, original.shape[1]))]
        yield from norms[1:]
        best = min(norms, key=lambda each: float((weight - each).square().sum()))
        rows = row_factors(weight, best)
        columns = row_factors(weight.T, original.T)
        for other in self._linears(block):
            if other == path:
                continue
            found, there = _weight(self.artifact, other), self.original(other)
            if found.shape != there.shape:
                continue
            if _undoes(rows, row_factors(found.T, there.T)):
                yield best * rows[:, None]
            producer = min(
                (there, *(there * t for t in self._ratios(block, there.shape[1]))),
                key=lambda each: float((found - each).square().sum()),
            )
            if _undoes(row_factors(found, producer), columns):
                yield original * columns

    def _linears(self, block: str) -> list[str]:
        modules = self.artifact.model.skeleton.model.named_modules()
        return [p for p, m in modules if is_linear(m) and p.startswith(f"{block}.")]

    def _ratios(self, block: str, size: int) -> tuple[torch.Tensor, ...]:
        """What vectors of a block were divided by, each fp32 (size,): those of norms."""
        names = (
            name
            for name, (_, shape) in self.artifact.dense.items()
            if name.startswith(f"{block}.") and shape == (size,) and name.endswith(".weight")
        )
        return tuple(ratio for name in names for ratio in self._ratios_of(name))

    def _ratios_of(self, name: str) -> list[torch.Tensor]:
        """What one vector may have been divided by: norms multiply by it, Gemma's by 1 + it."""
        here, there = (each.dense.get(name, (None,))[0] for each in (self.artifact, self.source))
        if here is None or there is None:
            return []
        mine = self.artifact.model.stored(name).float()
        theirs = self.source.model.stored(name).float()
        found = [(theirs + shift) / (mine + shift) for shift in (0.0, 1.0)]
        return [r for r in found if bool(r.isfinite().all() & ((r - 1).abs().max() > MOVED))]

    def undone(self, name: str) -> bool:
        """Whether a changed vector of a block is one that its linears undo."""
        block, (_, shape) = _block(name), self.artifact.dense[name]
        if not block or len(shape) != 1:
            return False
        owner, _, key = name.rpartition(".")
        if key == "bias" and f"{owner}.weight" in self.artifact.dense:
            return self.undone(f"{owner}.weight")  # of a norm
        ratios = self._ratios_of(name)
        for path in self._linears(block):
            weight, original = _weight(self.artifact, path), self.original(path)
            if weight.shape != original.shape:
                continue
            if path == owner:
                return self._scaled_bias(name, row_factors(weight, original))
            error = float(relative(weight, original))
            for ratio in (r for r in ratios if len(r) == weight.shape[1]):
                folded = original * ratio
                nearer = float(relative(weight, folded)) < error
                scheme = self.artifact.model.scheme(path)
                if nearer and too_far(weight, folded, scheme, WRONG) is None:
                    return True
        return False

    def _scaled_bias(self, name: str, rows: torch.Tensor) -> bool:
        """Whether a linear's bias was scaled as the rows of its weight, (out_features,), were."""
        place = self.source.model.place(name)
        if place is None or self.source.dense[name][1] != tuple(rows.shape):
            return False
        mine = self.artifact.model.stored(name).float()
        scaled = self.source.model.stored(name).float() * rows
        return float(relative(mine, scaled)) < FOUND**2

    def _like(self, path: str, weight: torch.Tensor) -> str | None:
        """The other linear whose original a weight is nearest to, where it clearly is."""
        shape = weight.shape
        for other, module in self.source.model.skeleton.model.named_modules():
            if other == path or not is_linear(module):
                continue
            sizes = module.weight.shape[::-1] if is_transposed(module) else module.weight.shape
            if tuple(sizes) != tuple(shape):
                continue
            if float(relative(weight, self.original(other))) < 0.3:
                return str(other)
        return None

    def dense_original(self, name: str) -> Iterator[torch.Tensor] | None:
        """Slices of the original of a stored tensor; None where it is stored otherwise."""
        checkpoint, info = self.source.checkpoint, self.source.files.get(name)
        here = self.artifact.files[name]
        if info is None or info.shape != here.shape or info.dtype not in ("F32", "F16", "BF16"):
            return None
        return pieces_of(checkpoint, name, here)  # as many rows at a time as of the artifact's


def _weight(declared: Declared, path: str) -> torch.Tensor:
    """The decoded weight of a linear, fp32 (out_features, in_features)."""
    model = declared.model
    module = model.skeleton.model.get_submodule(path)
    weight = model.parameter(f"{path}.weight")
    return (weight.T if is_transposed(module) else weight).float()


def _undoes(rows: torch.Tensor, columns: torch.Tensor) -> bool:
    """Whether scales of outputs are undone by those of inputs, heads repeated where they are."""
    if len(columns) % len(rows):
        return False
    again = len(columns) // len(rows)
    for count in {1, *(2**k for k in range(9) if len(rows) % 2**k == 0)}:
        spread = rows.view(count, -1).repeat_interleave(again, 0).flatten()
        moved = (spread - 1).abs() > FOUND
        off = (spread * columns - 1).abs()[moved]
        if len(off) and float(off.median()) < FOUND and float(off.quantile(0.9)) < 4 * FOUND:
            return True
    return False


def _block(path: str) -> str:
    """The path of the block that a module or tensor is in: up to the first number."""
    words = path.split(".")
    at = next((i for i, word in enumerate(words) if word.isdigit()), None)
    return "" if at is None else ".".join(words[: at + 1])
