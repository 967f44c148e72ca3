"""What each rank holds under tensor, pipeline and expert parallelism.

Tensor: q, k, v, gate, up by outputs, o, down by inputs, KV heads as far as there are any, a copy of
the rest (Megatron-LM, arXiv 1909.08053, 3). Pipeline: own blocks, the first stage with the
embedding, the last with norm and head. Expert: whole experts (vLLM 0.33 source).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from quantkit.core.errors import InputError
from quantkit.core.facts import LinearFacts
from quantkit.core.serving import Degrees
from quantkit.planning.model.architecture import Architecture, Attention, Experts
from quantkit.planning.model.inventory import Inventory, PlannedTensor, one_by_one

VOCABULARY_UNIT = 64
"""Rows to which vLLM and SGLang pad a vocabulary before they split it."""
TRANSPOSED = ("gpt2",)
"""Families whose linears are stored (inputs, outputs)."""


@dataclass(frozen=True)
class Stage:
    """The blocks [first, end) of one pipeline stage."""

    first: int
    end: int
    depth: int

    def holds(self, tensor: PlannedTensor, *, tied: bool) -> bool:
        """Whether the stage keeps a tensor; a tied embedding is the head of the last one, too."""
        if tensor.layer is not None:
            return self.first <= tensor.layer < self.end
        at_start, at_end = self.first == 0, self.end == self.depth
        if tensor.part == "embedding":
            return at_start or (at_end and tied)
        if tensor.part in ("norm", "head"):
            return at_end
        return at_start

    def of(self, architecture: Architecture) -> Architecture:
        """The architecture with these blocks only."""
        return replace(architecture, layers=architecture.layers[self.first : self.end])


def stages_of(depth: int, pipeline: int) -> tuple[Stage, ...]:
    """The stages of `depth` blocks: equal ones, and one more for the last but one backwards.

    As vLLM 0.33 deals them out, since the last stage has the head.

    Raises:
        InputError: there are fewer blocks than stages.
    """
    if pipeline > depth:
        what = f"{depth} blocks do not divide among {pipeline} pipeline stages"
        raise InputError(what, hint=f"--set pp={depth}")
    sizes = [depth // pipeline] * pipeline
    for i in range(2, depth % pipeline + 2):
        sizes[-i] += 1
    ends = [sum(sizes[: i + 1]) for i in range(pipeline)]
    return tuple(Stage(end - size, end, depth) for size, end in zip(sizes, ends, strict=True))


@dataclass(frozen=True)
class Kind:
    """Tensors of one layer that are alike in all that memory depends on: `count` of them.

    `tensor` is the first, `rows` have all. `quantizable`: they are weights of linears of a block.
    `kv_heads`: of its layer, None where nothing hangs on it.
    """

    tensor: PlannedTensor
    count: int
    rows: tuple[PlannedTensor, ...]
    quantizable: bool
    kv_heads: int | None
    experts: int | None
    transposed: bool
    model_type: str = ""

    def facts(self, tensor: PlannedTensor | None = None) -> LinearFacts:
        """The linear whose weight one of the tensors is, whole; without one the first."""
        given = tensor or self.tensor
        return facts_of(given, transposed=self.transposed, model_type=self.model_type)

    @property
    def linears(self) -> Iterator[PlannedTensor]:
        """The weights of its linears, each under its own name; none where they are none."""
        return one_by_one(self.rows if self.quantizable else ())


def kinds_of(inventory: Inventory, architecture: Architecture) -> tuple[Kind, ...]:
    """The tensors that an engine loads, those alike counted.

    Neither those of extra blocks (MTP), nor a head that lies in the files beside the embedding to
    which the config ties it.
    """
    depth = len(architecture.layers)
    alike: dict[tuple[object, ...], list[PlannedTensor]] = {}
    for t in inventory.rows:
        if architecture.tied and t.part == "head" and t.split == "vocabulary" and len(t.shape) > 1:
            continue
        key = (t.part, t.split, t.shape, t.dtype, t.layer, t.linear is None)
        alike.setdefault(key, []).append(t)
    transposed = architecture.model_type in TRANSPOSED
    return tuple(
        _kind(members, architecture, transposed=transposed)
        for members in alike.values()
        if members[0].layer is None or members[0].layer < depth
    )


def _kind(
    members: Sequence[PlannedTensor], architecture: Architecture, *, transposed: bool
) -> Kind:
    tensor = members[0]
    layer = None if tensor.layer is None else architecture.layers[tensor.layer]
    block = layer.feed_forward if layer else None
    keyed = (m.kv_heads for m in (layer.mixers if layer else ()) if isinstance(m, Attention))
    return Kind(
        tensor,
        sum(member.alike for member in members),
        tuple(members),
        tensor.linear is not None and layer is not None,
        next(keyed, None),
        block.count if isinstance(block, Experts) and tensor.part == "experts" else None,
        transposed,
        architecture.model_type,
    )


def facts_of(
    tensor: PlannedTensor, *, transposed: bool = False, model_type: str = ""
) -> LinearFacts:
    """The linear whose weight a tensor is, whole."""
    assert tensor.linear is not None
    rows, columns = tensor.shape[::-1] if transposed else tensor.shape
    return LinearFacts(
        tensor.linear,
        rows,
        columns,
        transposed,
        tensor.fused,
        merged=tensor.merged,
        model_type=model_type,
    )


def rank_facts(kind: Kind, degrees: Degrees) -> LinearFacts:
    """The slice of a linear that one rank holds."""
    facts = kind.facts()
    t = 1 if _whole_experts(kind, degrees) else degrees.tensor
    match kind.tensor.split:
        case "rows":
            return replace(facts, out_features=-(-facts.out_features // t))
        case "kv_rows":
            return replace(facts, out_features=facts.out_features // _kv_shares(kind, t))
        case "columns":
            return replace(facts, in_features=-(-facts.in_features // t))
        case _:
            return facts


def rank_count(kind: Kind, degrees: Degrees) -> int:
    """How many of the kind's tensors one rank holds."""
    if kind.experts is None or degrees.expert == 1 or kind.tensor.split == "experts":
        return kind.count
    return -(-kind.count * -(-kind.experts // degrees.expert) // kind.experts)


def rank_elements(kind: Kind, degrees: Degrees, *, padded: bool = True) -> int:
    """Elements that one rank holds of a tensor that is not quantized here."""
    shape, size = kind.tensor.shape, math.prod(kind.tensor.shape)
    if kind.tensor.split == "vocabulary" and padded:
        size = -(-shape[0] // VOCABULARY_UNIT) * VOCABULARY_UNIT * (size // shape[0])
    if kind.experts is not None and degrees.expert > 1 and kind.tensor.split == "experts":
        return -(-size // kind.experts) * -(-kind.experts // degrees.expert)  # stacked ones
    return -(-size // _ranks(kind, degrees))


def _ranks(kind: Kind, degrees: Degrees) -> int:
    """Ranks that share a tensor; 1 where each has a copy."""
    split, shape = kind.tensor.split, kind.tensor.shape
    if _whole_experts(kind, degrees):
        return 1
    if split == "replicated" or not shape or (split == "columns" and 1 in shape):
        return 1  # scales of whole channels: each rank of a linear split by inputs needs them all
    return _kv_shares(kind, degrees.tensor) if split == "kv_rows" else degrees.tensor


def _whole_experts(kind: Kind, degrees: Degrees) -> bool:
    return kind.experts is not None and degrees.expert > 1


def _kv_shares(kind: Kind, tensor: int) -> int:
    """Ranks over which K and V are divided; further ones hold copies."""
    return min(tensor, kind.kv_heads) if kind.kv_heads else tensor
