from collections.abc import Callable
from time import process_time
from typing import Any

import pytest
import torch

from quantkit.core.errors import InputError, RefusedError
from quantkit.core.facts import LinearFacts, ModelFacts
from quantkit.core.scheme import Scheme
from quantkit.formats.compressed_tensors import FORMAT
from quantkit.grid.qtensor import QTensor

UP, DOWN = "model.layers.0.mlp.up_proj", "model.layers.1.mlp.down_proj"
LINEAR = LinearFacts(UP, 40, 128)
W4, W8A8 = Scheme("int", 4, 128), Scheme("int", 8, None, activation="int8-token")
WEIGHTS = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128}
TOKEN = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True, "symmetric": True}
CHANNEL = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}


def foreign(group: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    first = {"targets": ["Linear"], "weights": WEIGHTS, "input_activations": None} | (group or {})
    block = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "ignore": ["lm_head"],
    }
    return block | {"config_groups": {"group_0": first}} | changes


def facts(schemes: dict[str, Scheme], *skipped: str) -> ModelFacts:
    return ModelFacts(schemes, skipped, "lm_head", "bfloat16", "model.layers")


def test_packed_codes_run_along_the_inputs(random_qtensor: Callable[..., QTensor]) -> None:
    qtensor = random_qtensor(Scheme("int", 4, 64, symmetric=False), 40, 128)
    tensors = FORMAT.encode(qtensor, "bfloat16")
    assert {name: (str(t.dtype), tuple(t.shape)) for name, t in tensors.items()} == {
        "weight_packed": ("torch.int32", (40, 16)),
        "weight_scale": ("torch.bfloat16", (40, 2)),
        "weight_shape": ("torch.int64", (2,)),
        "weight_zero_point": ("torch.int32", (5, 2)),
    }
    assert tensors["weight_shape"].tolist() == [40, 128]
    word = int(tensors["weight_packed"][7, 1])
    assert [(word >> (4 * i)) & 15 for i in range(8)] == qtensor.codes[7, 8:16].tolist()
    word = int(tensors["weight_zero_point"][1, 1])
    assert qtensor.zeros is not None
    assert [(word >> (4 * i)) & 15 for i in range(8)] == qtensor.zeros[8:16, 1].tolist()


def test_three_bits_are_dense(random_qtensor: Callable[..., QTensor]) -> None:
    scheme = Scheme("int", 3, 32)
    tensors = FORMAT.encode(random_qtensor(scheme, 40, 128), "bfloat16")
    assert tensors["weight_packed"].shape == (40, 12)
    padded = torch.zeros(40, 13, dtype=torch.int32)  # ten codes a word, as before 0.18
    with pytest.raises(InputError, match="weight_packed"):
        FORMAT.decode(tensors | {"weight_packed": padded}, scheme, LINEAR)


def test_w8a8_weights_are_signed(random_qtensor: Callable[..., QTensor]) -> None:
    qtensor = random_qtensor(W8A8, 40, 128)
    tensors = FORMAT.encode(qtensor, "bfloat16")
    assert tensors["weight"].dtype == torch.int8
    assert torch.equal(tensors["weight"].int(), qtensor.codes.int() - 128)
    assert tensors["weight_scale"].shape == (40, 1)


def test_group_act_order_is_refused(random_qtensor: Callable[..., QTensor]) -> None:
    tensors = FORMAT.encode(random_qtensor(W4, 40, 128), "bfloat16")
    tensors["weight_g_idx"] = torch.zeros(128, dtype=torch.int32)
    with pytest.raises(RefusedError, match="act-order"):
        FORMAT.decode(tensors, W4, LINEAR)


def test_a_stated_shape_must_be_the_weights(random_qtensor: Callable[..., QTensor]) -> None:
    tensors = FORMAT.encode(random_qtensor(W4, 40, 128), "bfloat16")
    tensors["weight_shape"] = torch.tensor([128, 40])
    with pytest.raises(InputError, match="weight_shape"):
        FORMAT.decode(tensors, W4, LINEAR)


@pytest.mark.parametrize(
    ("scheme", "linear", "reason"),
    [
        (Scheme("nf4", 4, 64), LINEAR, "integers and floats"),
        (Scheme("nf4"), LINEAR, "NF4"),
        (Scheme("int", 8, 64, activation="int8-token"), LINEAR, "one scale per channel"),
        (Scheme("int", 4, None, activation="int8-token"), LINEAR, "8-bit"),
        (Scheme("int", 4, 48), LINEAR, "does not divide"),
        (W4, LinearFacts("h.0.c_fc", 64, 128, transposed=True), "Conv1D"),
    ],
)
def test_refuses(scheme: Scheme, linear: LinearFacts, reason: str) -> None:
    assert reason in (FORMAT.check(scheme, linear) or "")


def test_one_scheme_is_one_group_of_linears() -> None:
    block = FORMAT.config(facts({UP: W4}, DOWN))
    assert block["format"] == "pack-quantized"
    assert block["ignore"] == ["lm_head", DOWN]
    (group,) = block["config_groups"].values()
    assert group["targets"] == ["Linear"]
    assert group["weights"]["group_size"] == 128
    assert group["input_activations"] is None


def test_several_schemes_are_groups_by_name() -> None:
    schemes = {DOWN: W8A8, UP: W4}
    block = FORMAT.config(facts(schemes))
    assert block["format"] == "mixed-precision"
    groups = block["config_groups"].values()
    assert {group["format"]: group["targets"] for group in groups} == {
        "pack-quantized": [UP],
        "int-quantized": [DOWN],
    }
    assert {name: FORMAT.parse(block)(name) for name in (UP, DOWN)} == schemes
    assert block == FORMAT.config(facts(dict(reversed(schemes.items()))))


@pytest.mark.parametrize(
    ("block", "name", "expected"),
    [
        (foreign(), UP, W4),
        (foreign(), "lm_head", None),
        (foreign(ignore=["re:.*up_proj"]), UP, None),
        (foreign(ignore=["re:up_proj"]), UP, W4),
        (foreign({"targets": ["re:.*layers.1.*"]}), UP, None),
        (foreign({"weights": WEIGHTS | {"actorder": "static"}}), UP, W4),
        (
            foreign({"weights": CHANNEL, "input_activations": TOKEN}, format="int-quantized"),
            UP,
            W8A8,
        ),
    ],
)
def test_blocks_of_other_tools(block: dict[str, Any], name: str, expected: Scheme | None) -> None:
    assert FORMAT.parse(block)(name) == expected


def test_names_go_before_classes() -> None:
    groups = {
        "group_0": {"targets": ["Linear"], "weights": WEIGHTS},
        "group_1": {"targets": ["re:.*down.*"], "weights": WEIGHTS | {"num_bits": 8}},
        "group_2": {"targets": [DOWN], "weights": WEIGHTS | {"num_bits": 2}},
    }
    block = foreign(config_groups=groups)
    assert FORMAT.parse(block)(UP) == W4
    assert FORMAT.parse(block)(DOWN.replace("1", "2")) == Scheme("int", 8, 128)
    assert FORMAT.parse(block)(DOWN) == Scheme("int", 2, 128)


@pytest.mark.parametrize(
    "block",
    [
        foreign({"weights": WEIGHTS | {"type": "float"}}),
        foreign({"weights": WEIGHTS | {"strategy": "tensor"}}),
        foreign({"weights": WEIGHTS | {"actorder": "group"}}),
        foreign({"weights": WEIGHTS | {"num_bits": "4"}}),
        foreign(format="nvfp4-pack-quantized"),
        foreign({"weights": CHANNEL, "input_activations": TOKEN | {"dynamic": False}}),
        foreign({"weights": CHANNEL, "input_activations": TOKEN}),
    ],
)
def test_other_schemes_are_refused(block: dict[str, Any]) -> None:
    with pytest.raises(RefusedError, match="unsupported scheme"):
        FORMAT.parse(block)(UP)


def test_nonsense_is_an_input_error() -> None:
    with pytest.raises(InputError, match="not a valid target"):
        FORMAT.parse(foreign(ignore=[7]))(UP)
    with pytest.raises(InputError, match="not a usable regex"):
        FORMAT.parse(foreign(ignore=["re:("]))(UP)


def test_a_block_that_names_every_expert_is_looked_through_once() -> None:
    layers, experts = 48, 128
    names = [
        f"model.layers.{layer}.mlp.experts.{expert}.{linear}_proj"
        for layer in range(layers)
        for expert in range(experts)
        for linear in ("gate", "up", "down")
    ]
    schemes = {name: (W4, Scheme("int", 8, 128))[i % 2] for i, name in enumerate(names)}
    block = FORMAT.config(facts(schemes, names[0] + "s"))
    start = process_time()
    scheme_of = FORMAT.parse(block)
    assert {name: scheme_of(name) for name in names} == schemes
    assert scheme_of(names[0] + "s") is None
    assert process_time() - start < 10  # once for each name would take minutes
