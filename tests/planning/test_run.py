"""Files to the byte and memory of a quantize run, planned without torch."""

from typing import Any

import pytest

from quantkit.checkpoint.writer import DEFAULT_SHARD_SIZE
from quantkit.core import registry
from quantkit.planning.config import read_architecture
from quantkit.planning.inventory import Inventory
from quantkit.planning.parameters import inventory_from_config
from quantkit.planning.run import Run, RunPlan, plan_run, planned_linears
from quantkit.planning.workspace import RULES
from quantkit.recipes.loader import build_recipe
from tests.planning.conftest import MODELS

W4A16 = {"method": "gptq", "format": "compressed-tensors", "group_size": 128}
GPTQ = {"method": "gptq", "format": "gptq", "group_size": 128}
AWQ = {"method": "awq", "format": "awq", "group_size": 128}
NF4 = {"recipe": "nf4-double"}
STATE = 174
"""Bytes of bitsandbytes' quant state of a linear of four-digit sides."""


def planned(inventory: Inventory, hidden: int, dtype: str = "BF16", **flags: Any) -> RunPlan:
    recipe = build_recipe(flags.pop("recipe", None), **flags)
    spec = recipe.calibration
    run = Run(
        method=recipe.method,
        output=registry.load("formats", recipe.format, "FORMAT"),
        hidden=hidden,
        dtype=dtype,
        windows=spec.samples,
        length=spec.sequence_length,
        max_shard_size=DEFAULT_SHARD_SIZE,
    )
    return plan_run(inventory, planned_linears(inventory, recipe), run)


def of_config(name: str, **flags: Any) -> RunPlan:
    config = MODELS[name]["config"]
    architecture = read_architecture(config)
    return planned(inventory_from_config(config, architecture), architecture.hidden, **flags)


@pytest.mark.parametrize(
    ("model", "flags", "size"),
    [
        ("Llama-2-7B", W4A16, 3_864_014_336),
        ("Llama-2-7B", GPTQ, 3_893_862_400),
        ("Llama-2-7B", AWQ, 3_889_307_648),
        ("Llama-3-8B", W4A16, 5_700_595_200),
        ("Llama-3-8B", GPTQ, 5_732_835_328),
        ("Llama-3-8B", AWQ, 5_727_854_592),
        ("Llama-3-8B", NF4, 5_702_539_264),
        ("Llama-3-70B", W4A16, 39_500_407_552),
        ("Llama-3-70B", GPTQ, 39_792_689_152),
        ("Llama-3.1-405B", W4A16, 215_512_692_512),
        ("Qwen3-32B", W4A16, 19_203_408_896),
    ],
)
def test_known_sizes_of_public_models(model: str, flags: dict[str, Any], size: int) -> None:
    shards = of_config(model, **flags).shards
    specs = [spec for shard in shards for spec in shard.specs]
    states = sum(spec.nbytes for spec in specs if "quant_state" in spec.name)
    assert sum(spec.nbytes for spec in specs) - states == size
    assert all(shard.nbytes <= DEFAULT_SHARD_SIZE for shard in shards)


def test_every_method_has_a_rule() -> None:
    assert {name.replace("-", "_") for name in registry.names("methods")} == set(RULES)
