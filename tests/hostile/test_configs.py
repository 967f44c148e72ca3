"""Configs that ask for more than there is, or for what nobody can read."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.hostile.scene import GENERATE, PLAN, QUANTIZE, Case, Scene, cases, parameters

HUGE = 10**9


def config(**changes: Any) -> Callable[[Scene], None]:
    return lambda scene: scene.config(**changes)


def text(content: str | bytes) -> Callable[[Scene], None]:
    return lambda scene: scene.write("config.json", content)


def code(scene: Scene) -> None:
    scene.config(
        auto_map={"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"},
        model_type="codeful",
    )
    scene.write("code.py", "open('run', 'w')\nclass Config: pass\nclass Model: pass\n")


def nested(depth: int) -> str:
    return '{"model_type":"llama","a":' + "[" * depth + "]" * depth + "}"


SIZES = cases(
    {
        f"{name}-{value:.0e}": (config(**{name: value}), (2, 4), "config.json")
        for name in (
            "head_dim",
            "hidden_size",
            "vocab_size",
            "intermediate_size",
            "num_attention_heads",
            "num_key_value_heads",
            "num_hidden_layers",
            "num_labels",
            "max_position_embeddings",
        )
        for value in (HUGE,)
        if (name) not in ("max_position_embeddings", "num_labels")
    }
    | {
        "labels": (config(num_labels=HUGE), (0, 2, 4)),
        "positions": (config(max_position_embeddings=10**18), (0, 2, 4)),
        "negative": (config(hidden_size=-128), (2, 4), "config.json"),
        "zero-heads": (config(num_attention_heads=0), (2, 4), "config.json"),
        "text-size": (config(hidden_size="128"), (2, 4), "config.json"),
        "list-size": (config(hidden_size=[128]), (2, 4), "config.json"),
        "float-layers": (config(num_hidden_layers=2.5), (2,), "config.json"),
        "layer-types": (config(layer_types=["full_attention"] * 10**5), (2, 4), "config.json"),
        "rope": (config(rope_parameters={"rope_type": "x" * 10**6}), (2, 4), "config.json"),
        "rope-list": (config(rope_parameters=[1]), (2, 4), "config.json"),
        "type": (config(model_type="x" * 10**6), (2, 4), "config.json"),
        "type-number": (config(model_type=7), (2, 4), "config.json"),
        "n-layers": (config(model_type="mpt", n_layers=10**7, d_model=128), (2, 4), "config.json"),
        "experts": (config(model_type="mixtral", num_local_experts=10**8), (2, 4), "config.json"),
        "architectures": (config(architectures=["os.system"]), (0, 2, 4)),
        "hidden-states": (config(output_hidden_states=True), (0, 2, 4)),
        "attentions": (config(output_attentions=True), (0, 2, 4)),
        "tuple": (config(return_dict=False), (0, 2, 4)),
        "chunks": (config(chunk_size_feed_forward=7), (0, 2, 4)),
        "pruned": (config(pruned_heads={"0": [0]}), (0, 2, 4)),
        "act": (config(hidden_act="eval"), (2, 4), "config.json"),
        "code": (code, (4,), "code"),
    }
)
FILES = cases(
    {
        "not-json": (text("{"), (2,), "config.json"),
        "list": (text("[1]"), (2,), "config.json"),
        "nan": (text('{"a": NaN}'), (2,), "config.json"),
        "twice": (text('{"a": 1, "a": 2}'), (2,), "config.json"),
        "utf-16": (text('{"model_type": "llama"}'.encode("utf-16")), (2,), "config.json"),
        "deep": (text(nested(60_000)), (2,), "config.json"),
        "digits": (
            text('{"model_type":"llama","hidden_size":' + "9" * 5000 + "}"),
            (2,),
            "config.json",
        ),
        "11-mb": (text('{"a":"' + "x" * 11_000_000 + '"}'), (2,), "config.json"),
    }
)
VERBS = cases(
    {
        f"{name}": (config(**{name: HUGE}), (2, 4), "config.json")
        for name in ("head_dim", "num_hidden_layers")
    },
    {"plan": PLAN, "quantize": QUANTIZE, "generate": GENERATE},
) | cases(
    {
        "hidden-states": (config(output_hidden_states=True), (0, 2, 4)),
        "tuple": (config(return_dict=False), (0, 2, 4)),
    },
    {"quantize": QUANTIZE, "generate": GENERATE},
)
CASES = {**SIZES, **FILES, **VERBS}


@pytest.mark.parametrize("name", parameters(CASES))
def test_configs(name: str, refused: Callable[[Case], None]) -> None:
    refused(CASES[name])
