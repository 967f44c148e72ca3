"""How a run reads models block by block: the memory that takes, and where hidden states wait."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import nn

from quantkit.checkpoint.spill import Spill
from quantkit.core.plan import Plan
from quantkit.core.resources import Holding, Memory
from quantkit.model.batches import Room
from quantkit.model.opened import OpenModel
from quantkit.pipeline.prepare import Prepared
from quantkit.planning.run.estimate import with_base
from quantkit.planning.run.evaluation import WAYS, Network, Reading, evaluation_memory
from quantkit.runs.ceiling import Ceiling


def network_of(model: OpenModel) -> Network:
    """The sizes of a model's parts, from its skeleton; no weight is read."""
    skeleton, config = model.skeleton, model.text_config
    blocks = [dict(block.named_parameters()) for block in skeleton.blocks]
    tables = (m for m in skeleton.model.modules() if isinstance(m, nn.Embedding))
    head = skeleton.model.get_submodule(skeleton.head)
    wide = model.dtype.itemsize
    active = getattr(config, "num_experts_per_tok", None) or 1
    chosen = max(active) if isinstance(active, list) else int(active)  # HunYuan: one a block
    return Network(
        block=max(_numbers(block.values()) for block in blocks),
        largest=max(p.numel() for block in blocks for p in block.values()),
        inner=max(
            max(p.shape[-2:]) * (chosen if "expert" in name else 1)
            for block in blocks
            for name, p in block.items()
        ),
        hidden=int(config.hidden_size),
        embedding=sum(_numbers(table.parameters()) for table in tables),
        head=_numbers(head.parameters()),
        vocabulary=int(config.vocab_size),
        itemsize=wide,
        cast=0 if model.source_dtype is model.dtype else model.source_dtype.itemsize,
        decoded=model.format is not None or bool(model.checkpoint.coding.tensors),
        merged=any(not place.is_plain for place in model.weights.places.values()),
    )


def _numbers(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def plan_reading(
    memory_of: Callable[[Holding], Memory], ceiling: Ceiling, plan: Plan, base: int | None
) -> Plan:
    """`plan` with the memory of an evaluation, in the first way that fits, or the leanest.

    `memory_of` gives it for a way; `base`: bytes that the process holds before.
    """
    found = plan
    for holding in WAYS:
        found = replace(plan, evaluation=with_base(memory_of(holding), base))
        if ceiling.holds(found):
            break
    return found


def with_evaluation(
    plan: Plan, ceiling: Ceiling, prepared: Prepared, windows: tuple[int, int]
) -> Plan:
    """The plan of a run with the memory of the evaluation after it: number, length of windows."""
    original = network_of(prepared.model)
    models = (replace(original, decoded=True), original)
    reading = Reading(*windows, device=prepared.model.device.type)
    base = plan.memory.base_bytes if plan.memory else None
    return plan_reading(partial(evaluation_memory, models, reading), ceiling, plan, base)


def waiting_room(memory: Memory | None, folder: Path) -> Room:
    """Where the hidden states of a planned evaluation wait: a file in `folder`, or memory.

    Raises:
        ResourceError: the folder's disk has no room for them.
    """
    if memory is None or not memory.holding.spilled:
        return list
    return Spill(folder, memory.spilled_bytes).batches
