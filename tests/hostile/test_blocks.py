"""Quantization blocks of config.json that say more than is read, or that take forever to match."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.hostile.scene import (
    EVAL,
    GENERATE,
    PLAN,
    QUANTIZE,
    VERIFY,
    Case,
    Scene,
    cases,
    parameters,
)

SLOW = r"(?:.|..|...)+(?<=!)$"
Q_PROJ = "model.layers.0.self_attn.q_proj"


def block(**changes: Any) -> Callable[[Scene], None]:
    def spoil(scene: Scene) -> None:
        found = json.loads((scene.model / "config.json").read_text())["quantization_config"]
        scene.config(
            quantization_config={k: v for k, v in (found | changes).items() if v is not None}
        )

    return spoil


def group(**changes: Any) -> Callable[[Scene], None]:
    def spoil(scene: Scene) -> None:
        found = json.loads((scene.model / "config.json").read_text())["quantization_config"]
        for each in found["config_groups"].values():
            each.update(changes)
        scene.config(quantization_config=found)

    return spoil


def plain(quantization: Any) -> Callable[[Scene], None]:
    return lambda scene: scene.config(quantization_config=quantization)


def zeros(scene: Scene) -> None:
    scene.put(f"{Q_PROJ}.weight_zero_point", torch.ones(16, 2, dtype=torch.int32))


NOISE = {"name": "noise", "kwargs": {}}
COMPRESSED = cases(
    {
        "transform": (
            block(transform_config={"config_groups": {"u": NOISE}}),
            (4,),
            "transform_config",
        ),
        "sparsity": (
            block(sparsity_config={"format": "sparse-24-bitmask"}),
            (4,),
            "sparsity_config",
        ),
        "outputs": (
            group(output_activations={"num_bits": 8, "type": "int"}),
            (4,),
            "output_activations",
        ),
        "cache": (block(kv_cache_scheme={"num_bits": 4, "type": "int"}), (4,), "kv_cache_scheme"),
        "cache-scales": (
            block(
                kv_cache_scheme={
                    "num_bits": 8,
                    "type": "float",
                    "strategy": "tensor",
                    "dynamic": False,
                    "symmetric": True,
                }
            ),
            (2,),
            "scales",
        ),
        "frozen": (block(quantization_status="frozen"), (0,)),
        "calibration": (block(quantization_status="calibration"), (4,), "quantization_status"),
        "zeros": (zeros, (4,), "weight_zero_point"),
        "groups-list": (block(config_groups=[1]), (2,), "config"),
        "groups-none": (block(config_groups={"a": None}), (2,), "config"),
        "targets": (group(targets=[7]), (2,), "7"),
        "bits": (group(weights={"num_bits": 10**9, "type": "int"}), (4,), "scheme"),
        "weights": (group(weights="x" * 10**6), (2, 4), "quantization"),
        "slow": (block(ignore=[f"re:{SLOW}"] * 100), (2, 4), "regex"),
        "many": (block(ignore=[f"re:layer{i}.*x" for i in range(100_000)]), (2, 4), "patterns"),
        "broken": (block(ignore=["re:(" * 1000]), (2,), "regex"),
        "repeat": (block(ignore=["re:" + "(" * 3 + "." + "{1,9999})" * 3]), (0, 2, 4)),
        "method": (block(quant_method="x" * 10**6), (4,), "quant_method"),
        "no-method": (block(quant_method=None), (4,), "quant_method"),
        "method-list": (block(quant_method=["gptq"]), (2, 4), "quant_method"),
        "format": (group(format="marlin-24"), (2, 4), "compressed-tensors"),
    },
    {"eval": EVAL},
) | cases(
    {
        "sparsity": (
            block(sparsity_config={"format": "sparse-24-bitmask"}),
            (4,),
            "sparsity_config",
        ),
        "many": (block(ignore=[f"re:layer{i}.*x" for i in range(100_000)]), (2, 4), "patterns"),
        "slow": (block(ignore=[f"re:{SLOW}"] * 100), (2, 4), "regex"),
    },
    {"generate": GENERATE, "quantize": QUANTIZE},
)
GPTQ = cases(
    {
        "dynamic-slow": (
            block(dynamic={f"+:{SLOW}{i}": {"bits": 4} for i in range(100)}),
            (2, 4),
            "regex",
        ),
        "dynamic-many": (
            block(dynamic={f"+:layer{i}.*x": {"bits": 8} for i in range(100_000)}),
            (2, 4),
            "patterns",
        ),
        "dynamic-list": (block(dynamic=[1]), (2, 4), "config"),
        "bits-list": (block(bits=[4]), (2, 4), "config"),
        "bits-huge": (block(bits=10**9), (2, 4)),
        "group-huge": (block(group_size=10**9), (2, 4)),
        "group-zero": (block(group_size=0), (2, 4)),
        "group-text": (block(group_size="128"), (2, 4)),
        "desc-act": (block(desc_act="maybe"), (2, 4, 0)),
        "modules": (block(modules_in_block_to_quantize=[[SLOW]] * 10**5), (0, 2, 4)),
    }
)
PLAIN = cases(
    {
        "list": (plain([1]), (2,), "quantization_config"),
        "text": (plain("gptq"), (2,), "quantization_config"),
        "empty": (plain({}), (4,), "quant_method"),
        "unknown": (plain({"quant_method": "hqq"}), (4,), "hqq"),
        "nowhere": (plain({"quant_method": "gptq", "bits": 4, "group_size": 128}), (0, 2, 4)),
        "modelopt": (plain({"quant_method": "modelopt", "quant_algo": "FP8"}), (0, 2, 4)),
    }
)
PLANNED = cases(
    {
        "many": (block(ignore=[f"re:layer{i}.*x" for i in range(100_000)]), (0, 2, 4, 6)),
        "slow": (block(ignore=[f"re:{SLOW}"] * 100), (0, 2, 4, 6)),
        "sparsity": (block(sparsity_config={"format": "sparse-24-bitmask"}), (0, 4)),
    },
    {"plan": (*PLAN, "--gpu", "4090", "--context", "256"), "verify": VERIFY},
)
COMPRESSED |= PLANNED
CASES = {
    **{f"compressed-{name}": case for name, case in COMPRESSED.items()},
    **{f"gptq-{name}": case for name, case in GPTQ.items()},
    **{f"plain-{name}": case for name, case in PLAIN.items()},
}


@pytest.fixture
def artifact(
    tiny_checkpoint: Callable[..., Path], made_once: Callable[..., Path]
) -> Callable[[str], Path]:
    """The tiny model in 4 bits, rounded to nearest, by the name of its format."""

    def make(output: str) -> Path:
        def build(folder: Path) -> None:
            quantized(tiny_checkpoint(), folder, output)

        return made_once(f"tiny-{output}", build)

    return make


def quantized(model: Path, folder: Path, output: str) -> None:
    import quantkit
    from quantkit.recipes.loader import build_recipe

    recipe = build_recipe("rtn", format=output, samples=1, sequence_length=32)
    quantkit.quantize(str(model), folder, recipe=recipe, evaluate=False)
    (folder / "SHA256SUMS").unlink()


@pytest.mark.parametrize("name", parameters(CASES))
def test_blocks(
    name: str, refused: Callable[[Case], None], scene: Scene, artifact: Callable[[str], Path]
) -> None:
    output = {"compressed": "compressed-tensors", "gptq": "gptq"}.get(name.partition("-")[0])
    if output:
        shutil.rmtree(scene.model)
        shutil.copytree(artifact(output), scene.model)
    refused(CASES[name])
