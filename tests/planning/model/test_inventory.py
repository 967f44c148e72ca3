"""Experts of a layer in one row: the figures of all of them, listed one by one only where asked."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantkit.core.serving import Degrees
from quantkit.planning.model.blockwise import block_fp8
from quantkit.planning.model.config import read_architecture
from quantkit.planning.model.inventory import Inventory
from quantkit.planning.model.packed import modelopt
from quantkit.planning.model.parameters import inventory_from_config, parameter_count
from quantkit.planning.model.weights import (
    PlannedModel,
    planned_model,
    recipe_build,
    stored_build,
    weigh,
)
from quantkit.recipes.loader import build_recipe

Planned = Callable[..., PlannedModel]
MIXTURES = ["Qwen3-30B-A3B", "DeepSeek-V2", "Mixtral-8x7B"]
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": []}


def listed(inventory: Inventory) -> Inventory:
    """The same inventory, as headers of files give it."""
    return Inventory(inventory.tensors, inventory.origin, inventory.uncounted)


@pytest.mark.parametrize("experts", [8, 64])
def test_rows_do_not_grow_with_the_experts(experts: int, known_models: dict[str, Any]) -> None:
    config = {**known_models["Qwen3-30B-A3B"]["config"], "num_experts": experts}
    inventory = inventory_from_config(config, read_architecture(config))
    assert len(inventory.rows) == 3 + 48 * (4 + 2 + 2 + 1 + 3)
    assert len(inventory.tensors) == 3 + 48 * (4 + 2 + 2 + 1 + 3 * experts)
    assert len({tensor.name for tensor in inventory.tensors}) == len(inventory.tensors)


@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize("flags", [None, {"group_size": 32}])
def test_rows_weigh_what_their_tensors_do(planned: Planned, name: str, flags: Any) -> None:
    model = planned(name)
    apart = planned_model(name, listed(model.inventory), model.architecture)
    assert parameter_count(apart.inventory) == parameter_count(model.inventory)
    for degrees in (Degrees(), Degrees(tensor=2), Degrees(tensor=2, expert=2)):
        sizes = []
        for each in (model, apart):
            recipe = flags and build_recipe("gptq-compressed", **flags)
            build = recipe_build(each, recipe) if recipe else stored_build(each)
            sizes.append(weigh(each, build, degrees))
        assert sizes[0] == sizes[1]


def test_an_override_tells_experts_apart(planned: Planned) -> None:
    model = planned("Qwen3-30B-A3B")
    settings = ["overrides=[{match: '*.experts.1?.*', skip: true}]"]
    recipe = build_recipe("gptq-compressed", settings=settings)
    build = recipe_build(model, recipe)
    names = {t.linear for kind in model.kinds for t in kind.linears}
    left = {name for name in names if name not in build.schemes}
    assert len(left) == 48 * 10 * 3


WORDS = ["layers.1.", "layers.*.", "experts.", "experts.*", "1", "1?", "[0-3]", ".gate_proj", "up*"]
GLOBS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map("".join)


@given(st.lists(GLOBS.map("*{}".format) | GLOBS, max_size=3), st.booleans())
def test_what_stays_is_the_same_for_rows_and_tensors(
    known_models: dict[str, Any], patterns: list[str], fp8: bool
) -> None:
    config = known_models["Qwen3-30B-A3B"]["config"] | {"num_experts": 12, "num_hidden_layers": 2}
    architecture = read_architecture(config)
    rows = inventory_from_config(config, architecture)
    if fp8:
        skipped = [p.strip(".*") for p in patterns if not set(p.strip(".*")) & set("*?[")]
        block: dict[str, Any] = FP8 | {"modules_to_not_convert": skipped}
        found = [block_fp8(block, each, architecture) for each in (rows, listed(rows))]
    else:
        block = NVFP4 | {"exclude_modules": patterns}
        found = [modelopt(block, each) for each in (rows, listed(rows))]
    assert (found[0] is None) == (found[1] is None)
    if found[0] and found[1]:
        assert found[0].tensors == found[1].tensors
