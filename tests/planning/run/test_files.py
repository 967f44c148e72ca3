"""Files to the byte and memory of a quantize run, planned without torch."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from quantkit.checkpoint.shards import DEFAULT_SHARD_SIZE
from quantkit.core import registry
from quantkit.core.errors import RefusedError
from quantkit.core.facts import LinearFacts
from quantkit.core.grid import Grid
from quantkit.core.recipe import Recipe
from quantkit.core.resources import Files, Memory
from quantkit.grid.qtensor import QTensor
from quantkit.planning.model.config import read_architecture
from quantkit.planning.model.parameters import inventory_from_config
from quantkit.planning.model.weights import PlannedModel, planned_model
from quantkit.planning.run.files import _codes_bytes, artifact_shards, quantized_by
from quantkit.planning.run.quantization import plan_linears, plan_quantization, run_of
from quantkit.recipes.loader import build_recipe
from tests.planning.conftest import MODELS

W4A16 = {"method": "gptq", "format": "compressed-tensors", "group_size": 128}
GPTQ: dict[str, Any] = {"method": "gptq", "format": "gptq", "group_size": 128}
AWQ = {"method": "awq", "format": "awq", "group_size": 128}
NF4 = {"recipe": "nf4-double"}


def job_of(name: str, depth: int | None = None, **flags: Any) -> tuple[PlannedModel, Recipe]:
    config = MODELS[name]["config"] | ({"num_hidden_layers": depth} if depth else {})
    architecture = read_architecture(config)
    model = planned_model(name, inventory_from_config(config, architecture), architecture)
    return model, build_recipe(flags.pop("recipe", None), **flags)


def of_config(name: str, depth: int | None = None, **flags: Any) -> tuple[Files, Memory]:
    plan = plan_quantization(*job_of(name, depth, **flags))
    assert plan.files is not None
    assert plan.memory is not None
    return plan.files, plan.memory


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
    planned, recipe = job_of(model, **flags)
    run = run_of(planned, recipe, DEFAULT_SHARD_SIZE)
    quantized = quantized_by(plan_linears(planned.inventory, recipe), planned.inventory)
    shards = artifact_shards(planned.inventory, quantized, run)
    assert {s.name: s.nbytes for s in shards} == dict(of_config(model, **flags)[0].sizes)
    specs = [spec for shard in shards for spec in shard.specs]
    states = sum(spec.nbytes for spec in specs if "quant_state" in spec.name)
    assert sum(spec.nbytes for spec in specs) - states == size
    assert all(shard.nbytes <= DEFAULT_SHARD_SIZE for shard in shards)


def test_memory_follows_the_windows_and_the_largest_group() -> None:
    """Llama-3-8B: 262,144 tokens paused at down_proj hold 3 x 4096 + 14336 numbers of 2 bytes."""
    files, full = of_config("Llama-3-8B", **GPTQ)
    others, none = of_config("Llama-3-8B", **GPTQ, samples=0)
    paused = 128 * 2048 * (3 * 4096 + 14336) * 2
    assert paused < full.peak.bytes < paused + 5 * 10**9
    assert "mlp.down_proj" in full.peak.rule
    assert none.peak.bytes < 4 * 10**9
    assert files.sizes == others.sizes
    assert (files.kept, others.kept) == (2 * 128 * 2048 * 4096 * 2, 0)
    assert files.bytes < files.disk_bytes - files.kept < 1.06 * files.bytes


def test_a_deeper_model_takes_no_more_memory() -> None:
    peaks = {of_config("Llama-3-8B", depth, **GPTQ)[1].peak.bytes for depth in (8, 32)}
    assert len(peaks) == 1


def test_what_cannot_be_quantized_is_not_planned() -> None:
    with pytest.raises(RefusedError, match="group size 96"):
        of_config("Llama-3-8B", **GPTQ | {"group_size": 96})


def test_a_run_is_planned_without_torch() -> None:
    program = (
        "import sys\n"
        "import quantkit.planning.run.files\n"
        "from quantkit.core import registry\n"
        "for name in registry.names('formats'): registry.load('formats', name, 'FORMAT')\n"
        "assert not {'torch', 'numpy', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("shape", [(96, 256), (40, 128)])
def test_codes_that_wait_are_counted_as_they_are(
    shape: tuple[int, int], random_qtensor: Callable[..., QTensor]
) -> None:
    grids: list[Grid] = [registry.load("grids", name, "GRID") for name in registry.names("grids")]
    for scheme in (example.stored() for grid in grids for example in grid.examples):
        kind = getattr(torch, scheme.scale_dtype("bfloat16"))
        found = random_qtensor(scheme, *shape, dtype=kind)
        tensors = (found.codes, found.scales, found.zeros)
        expected = sum(tensor.nbytes for tensor in tensors if tensor is not None)
        assert _codes_bytes(LinearFacts("x", *shape), scheme, "bfloat16") == expected, scheme
