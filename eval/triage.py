"""The KL contribution of each block and each kind of linear of a quantized model.

One part at a time is quantized in the original, and one part at a time is restored in the quantized
model. All variants run through the blocks together, so that each block is read once, and a variant
costs only the blocks from the first one in which it differs from its base model.
"""

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import nn

from quantkit.core.progress import Progress, Report, silent
from quantkit.eval.scoring import score_tokens
from quantkit.eval.text import EvaluationText
from quantkit.eval.walking import rows_of, side_of
from quantkit.grid.transfer import to_device
from quantkit.model.batches import Batches, copied
from quantkit.model.calls import BlockInputs
from quantkit.model.opened import OpenModel, drop
from quantkit.model.skeleton import is_linear
from quantkit.results.estimate import Estimate
from quantkit.results.schema import Share, Triage

Pair = tuple[nn.Module, nn.Module]
"""One block of the original and of the quantized model."""


@dataclass
class _Variant:
    """The original or the quantized model (`base` 0 or 1) with one part of the other.

    The part is block `index`, or in every block the linear `kind`. `states` are the hidden states
    of all batches, as far as the variant has run: those of the whole model until it has.
    """

    states: Batches
    base: int
    index: int | None = None
    kind: str | None = None
    shares: bool = True


def triage(
    artifact: OpenModel, original: OpenModel, text: EvaluationText, report: Report = silent
) -> Triage:
    """KL shares of every block, and of every kind of quantized linear (`mlp.down_proj`).

    With n blocks this runs about n times as many blocks as an evaluation of both models.
    """
    states, calls = original.enter(text.inputs)
    entered = (states, artifact.enter(text.inputs)[0])
    whole = [_Variant(each, q, shares=False) for q, each in enumerate(entered)]
    kinds = [
        _Variant(whole[q].states, q, kind=kind)
        for kind in quantized_kinds(artifact)
        for q in (0, 1)
    ]
    blocks: list[_Variant] = []
    count = len(original.skeleton.blocks)
    for index in range(count):
        pair = (original.load_block(index), artifact.load_block(index))
        if kinds and _folded(pair):
            kinds.clear()
        blocks += [_Variant(whole[q].states, q, index=index) for q in (0, 1)]
        for variant in [*blocks, *kinds, *whole]:  # whole last: the others start from its states
            _advance(variant, index, pair, calls, original)
        for model_block in pair:
            drop(model_block)
        done = index + 1  # the block of every variant ran, and each block adds two
        share = done * (done + 3 + len(kinds)) / (count * (count + 3 + len(kinds)))
        name = original.skeleton.block_name(index)
        report(Progress("triage: blocks", done, count, name, share))
    sides = [side_of(model, whole[q].states, text) for q, model in enumerate((original, artifact))]
    scored, variants = itertools.count(1), len(blocks) + len(kinds) + 1

    def divergence(variant: _Variant) -> Estimate:
        rows = rows_of(variant.states, original.device)
        side = replace(sides[variant.base], rows=rows)
        scores = score_tokens(text, side, sides[0])
        report(Progress("triage: scores", next(scored), variants))
        return scores.mean(scores.beside["kl"])

    def shares(variants: list[_Variant]) -> Iterator[Share]:
        for only, restored in zip(variants[::2], variants[1::2], strict=True):
            name = only.kind or original.skeleton.block_name(only.index or 0)
            alone, without = divergence(only), divergence(restored)
            yield Share(
                name=name,
                only=alone.value,
                only_standard_error=_finite(alone.standard_error),
                restored=without.value,
                restored_standard_error=_finite(without.standard_error),
            )

    return Triage(
        whole=divergence(whole[1]).value,
        windows=len(text.spans),
        blocks=list(shares(blocks)),
        kinds=list(shares(kinds)),
    )


def _finite(error: float) -> float | None:
    """The error, None where one document alone was seen."""
    return error if math.isfinite(error) else None


def _advance(
    variant: _Variant,
    index: int,
    pair: Pair,
    calls: list[list[BlockInputs]],
    model: OpenModel,
) -> None:
    """Run a variant through block `index`; its states wait where the model's do."""
    block = pair[variant.base ^ (variant.index == index)]
    with _exchanged(pair, variant.kind), torch.no_grad():
        outputs = (
            calls[i][index].run(block, to_device(hidden, model.device))
            for i, hidden in enumerate(variant.states)
        )
        if variant.shares:
            variant.states, variant.shares = copied(outputs, model.room), False
        else:
            for i, hidden in enumerate(outputs):
                variant.states[i] = hidden


@contextmanager
def _exchanged(pair: Pair, kind: str | None) -> Iterator[None]:
    """The two blocks with their linears called `kind` in each other's place."""
    if kind is None or not all(_has(block, kind) for block in pair):
        yield
        return
    _exchange(pair, kind)
    try:
        yield
    finally:
        _exchange(pair, kind)


def _exchange(pair: Pair, kind: str) -> None:
    one, other = (block.get_submodule(kind) for block in pair)
    parent, _, name = kind.rpartition(".")
    for block, linear in zip(pair, (other, one), strict=True):
        setattr(block.get_submodule(parent), name, linear)


def _has(block: nn.Module, name: str) -> bool:
    return any(known == name for known, _ in block.named_modules())


def quantized_kinds(artifact: OpenModel) -> list[str]:
    """Paths within a block of the linears that are quantized in any block, in their order."""
    found: dict[str, None] = {}
    for index, block in enumerate(artifact.skeleton.blocks):
        prefix = artifact.skeleton.block_name(index)
        for path, module in block.named_modules():
            if is_linear(module) and artifact.scheme(f"{prefix}.{path}") is not None:
                found[path] = None
    return list(found)


def _folded(pair: Pair) -> bool:
    """Whether the blocks differ in modules other than linears (folded norms)."""
    one, other = (dict(block.named_modules()) for block in pair)
    return any(
        not torch.equal(a, b)
        for path, module in one.items()
        if not is_linear(module)
        for a, b in zip(
            module.parameters(recurse=False), other[path].parameters(recurse=False), strict=True
        )
    )
