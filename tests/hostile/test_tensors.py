"""Weights that are no plain numbers, or that the model of the config has no place for."""

import math
from collections.abc import Callable

import pytest
import torch

from tests.hostile.scene import (
    EVAL,
    FIT,
    GENERATE,
    PLAN,
    QUANTIZE,
    READERS,
    Case,
    Scene,
    cases,
    parameters,
)

Q_PROJ = "model.layers.0.self_attn.q_proj"
DTYPES = {
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "bool": torch.bool,
    "uint8": torch.uint8,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
}


def cast(part: str, dtype: torch.dtype) -> Callable[[Scene], None]:
    return lambda scene: scene.cast(part, dtype)


def extra(name: str, *shape: int, dtype: torch.dtype = torch.float32) -> Callable[[Scene], None]:
    return lambda scene: scene.put(name, torch.ones(shape, dtype=dtype))


def number(name: str, value: float) -> Callable[[Scene], None]:
    def spoil(scene: Scene) -> None:
        def change(found: dict[str, torch.Tensor]) -> None:
            found[name].view(-1)[3] = value

        scene.tensors(change)

    return spoil


def adapter(scene: Scene) -> None:
    scene.write("adapter_config.json", '{"peft_type": "LORA"}')
    scene.put(f"base_model.model.{Q_PROJ}.lora_A.weight", torch.ones(8, 128))
    scene.put(f"base_model.model.{Q_PROJ}.lora_B.weight", torch.ones(128, 8))


def lora(scene: Scene) -> None:
    scene.put(f"{Q_PROJ}.lora_A.weight", torch.ones(8, 128))
    scene.put(f"{Q_PROJ}.lora_B.weight", torch.ones(128, 8))


def deeper(scene: Scene) -> None:
    def change(found: dict[str, torch.Tensor]) -> None:
        for name in [n for n in found if n.startswith("model.layers.1.")]:
            found[name.replace(".1.", ".2.", 1)] = found[name].clone()

    scene.tensors(change)


PLAIN = cases(
    {
        f"{name}-{part}": (cast(part, dtype), (4,), part)
        for name, dtype in DTYPES.items()
        for part in ("q_proj", "embed_tokens", "lm_head", "input_layernorm")
        if name in ("int8", "e4m3") or part == "q_proj"
    },
    {"eval": EVAL},
)
VERBS = cases(
    {
        "int8": (cast("proj", torch.int8), (4,), "_proj"),
        "bool": (cast("proj", torch.bool), (4,), "_proj"),
    },
    {**READERS, "plan": PLAN, "fit": FIT},
)
EXTRA = cases(
    {
        "extra-layer": (deeper, (4,), "model.layers.2"),
        "fewer-layers": (lambda scene: scene.config(num_hidden_layers=1), (4,), "model.layers.1"),
        "lora": (lora, (4,), "lora_A"),
        "adapter": (adapter, (4,), "adapter_config.json"),
        "weight-scale": (extra(f"{Q_PROJ}.weight_scale", 128, 1), (4,), "weight_scale"),
        "scales": (extra(f"{Q_PROJ}.scales", 1, 128), (4,), "scales"),
        "pre-quant-scale": (extra(f"{Q_PROJ}.pre_quant_scale", 128), (4,), "pre_quant_scale"),
        "perm": (extra(f"{Q_PROJ}.perm", 128, dtype=torch.int32), (4,), "perm"),
        "g-idx": (extra(f"{Q_PROJ}.g_idx", 128, dtype=torch.int32), (4,), "g_idx"),
        "bias": (extra(f"{Q_PROJ}.bias", 128), (4,), "q_proj.bias"),
        "norm": (extra("model.layers.0.self_attn.q_norm.weight", 32), (4,), "q_norm"),
        "scb": (extra(f"{Q_PROJ}.SCB", 128), (4,), "SCB"),
    },
    {"eval": EVAL, "quantize": QUANTIZE},
)
NUMBERS = {
    f"{value}-{where}-{method}": Case(
        number(name, value),
        (*QUANTIZE[:4], "--method", method, *QUANTIZE[6:]),
        (6,),
        (name.removesuffix(".weight"),),
    )
    for value in (math.nan, math.inf)
    for where, name in (("linear", f"{Q_PROJ}.weight"), ("norm", "model.norm.weight"))
    for method in ("rtn", "gptq", "awq", "nf4", "smoothquant")
    if where == "linear" or method == "rtn"
} | {
    f"nan-{where}-{verb}": Case(number(name, math.nan), argv, (6,), (name,))
    for where, name in (
        ("linear", f"{Q_PROJ}.weight"),
        ("embedding", "model.embed_tokens.weight"),
        ("norm", "model.layers.1.input_layernorm.weight"),
        ("head", "lm_head.weight"),
    )
    for verb, argv in (("eval", EVAL), ("generate", GENERATE))
}
SOUND = cases(
    {
        "zero-bias": (lambda scene: scene.put(f"{Q_PROJ}.bias", torch.zeros(128)), (0,)),
        "fp64": (cast("q_proj", torch.float64), (0,)),
        "inv-freq": (extra("model.layers.0.self_attn.rotary_emb.inv_freq", 16), (0,)),
        "gpt-neo-mask": (extra("model.layers.0.attn.attention.bias", 1, 1, 16, 16), (0,)),
        "codegen-mask": (extra("model.layers.0.attn.causal_mask", 1, 1, 16, 16), (0,)),
        "tower": (extra("vision_tower.patch.weight", 4, 4), (0,)),
    }
)
CASES = {**PLAIN, **VERBS, **EXTRA, **NUMBERS, **SOUND}


@pytest.mark.parametrize("name", parameters(CASES))
def test_weights_that_are_not_the_models(name: str, refused: Callable[[Case], None]) -> None:
    refused(CASES[name])
