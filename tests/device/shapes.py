"""Quantizing blocks on a device that computes nothing: what they ask of it and hold, at any size.

Structure and plan come from a real trace on the host; weights are a file of zeros without blocks on
the disk.
"""

import json
import math
import struct
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import torch

from quantkit.grid.transfer import to_host
from tests.device.counts import Counts
from tests.device.pretended import held_bytes, peak_bytes, pretended

DEVICE = "pretended:0"
LLAMA_8B: dict[str, int] = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 8192,
}


NARROW = {"hidden_size": 256, "intermediate_size": 512}


def write_models(folder: Path, blocks: int = 1, **shape: int) -> None:
    """A Llama in bf16 of zeros, which takes no space and has no tokenizer, and a narrow one."""
    _write_llama(folder, blocks, **shape)
    _write_llama(folder / "narrow", blocks, **shape | NARROW)


def _write_llama(folder: Path, blocks: int, **shape: int) -> None:
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        **{"vocab_size": 256, "num_hidden_layers": blocks, **shape},
        architectures=["LlamaForCausalLM"],
        dtype="bfloat16",
        bos_token_id=0,
        eos_token_id=1,
    )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    config.save_pretrained(folder)
    header: dict[str, Any] = {}
    end = 0
    for name, weight in model.state_dict().items():
        start, end = end, end + 2 * prod(weight.shape)
        header[name] = {"dtype": "BF16", "shape": [*weight.shape], "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(file.tell() + end)


def prepared_for(folder: Path, recipe: str, **flags: Any) -> Any:
    """The model in `folder` with a recipe's plan, on the device.

    The structure is that of the narrow model in `folder / narrow`: no width has a part in it.
    """
    with pretended(shapes_only=True):
        there = torch.device(DEVICE)
    from quantkit.core.plan import make_plan
    from quantkit.core.rules import rules_of
    from quantkit.model.open import open_model
    from quantkit.model.structure import trace_structure
    from quantkit.pipeline.prepare import Prepared, linears_of, parts_of
    from quantkit.recipes.loader import build_recipe

    model = open_model(folder)
    structure = trace_structure(open_model(folder / "narrow").skeleton)
    wanted = build_recipe(recipe, **flags)
    method, output, engines, options = parts_of(wanted)
    plan = make_plan(wanted, linears_of(model, structure)[0], rules_of(method, output, engines))
    model = replace(model, device=there)
    return Prepared(model, structure, plan, method, output, options)


def run_blocks(
    prepared: Any, windows: int, length: int, holding: Any = None, most: float = math.inf
) -> tuple[Counts, int]:
    """What its blocks ask of the device on so many tokens, and the most bytes that they hold there.

    Reading, forward and solving; encoding is left out. `holding` as in `SolverConfig`; the device
    has room for `most` bytes.
    """
    from quantkit.pipeline import blockloop, groups

    # its name in commits before there were experts
    config = getattr(groups, "SolverConfig", None) or groups.Job  # type: ignore[attr-defined]
    solver = config(prepared.method, prepared.options, prepared.plan.schemes)
    if holding is not None:
        compensate = prepared.plan.recipe.calibration.compensate
        solver = replace(solver, holding=holding, compensate=compensate)
    ids = torch.zeros(windows, length, dtype=torch.int64)
    with pretended(most, shapes_only=True) as seen:
        before = held_bytes()
        if holding is not None and holding.offloaded:
            prepared.model.enter(ids, keep=to_host)
        else:
            prepared.model.enter(ids)
        twice = {name: counter + counter for name, counter in vars(seen).items()}
        for _ in blockloop.quantize_blocks(prepared.model, prepared.structure, solver, ids):
            pass
        counts = Counts(**{name: count - twice[name] for name, count in vars(seen).items()})
    return counts, peak_bytes() - before
