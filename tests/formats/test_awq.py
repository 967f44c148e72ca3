from collections.abc import Callable
from typing import Any

import pytest

from quantkit.core.errors import InputError, RefusedError
from quantkit.core.facts import LinearFacts, ModelFacts
from quantkit.core.scheme import Scheme
from quantkit.formats.awq import FORMAT
from quantkit.grid.packing import AWQ_ORDER
from quantkit.grid.qtensor import QTensor

UP, DOWN = "model.layers.0.mlp.up_proj", "model.layers.10.mlp.down_proj"
LINEAR = LinearFacts(UP, 64, 128)
FOREIGN = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}
ASYMMETRIC = Scheme(symmetric=False)


def nibbles(word: int) -> list[int]:
    return [(word >> (4 * i)) & 15 for i in range(8)]


def test_words_hold_eight_outputs_of_one_input(random_qtensor: Callable[..., QTensor]) -> None:
    qtensor = random_qtensor(ASYMMETRIC, 64, 128)
    tensors = FORMAT.encode(qtensor, "float16")
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    assert shapes == {"qweight": (128, 8), "qzeros": (2, 8), "scales": (2, 64)}
    column = qtensor.codes[8:16, 3].tolist()
    assert nibbles(int(tensors["qweight"][3, 1])) == [column[i] for i in AWQ_ORDER]
    assert qtensor.zeros is not None
    zeros = qtensor.zeros[8:16, 1].tolist()
    assert nibbles(int(tensors["qzeros"][1, 1])) == [zeros[i] for i in AWQ_ORDER]


def test_symmetric_is_a_zero_point_of_eight(random_qtensor: Callable[..., QTensor]) -> None:
    tensors = FORMAT.encode(random_qtensor(Scheme(), 64, 128), "float16")
    assert set(tensors["qzeros"].flatten().tolist()) == {0x88888888 - 2**32}
    as_engines_read = FORMAT.decode(tensors, ASYMMETRIC, LINEAR)
    assert as_engines_read.zeros is not None
    assert set(as_engines_read.zeros.flatten().tolist()) == {8}
    tensors["qzeros"][0, 0] = 0
    with pytest.raises(InputError, match="other than 8"):
        FORMAT.decode(tensors, Scheme(), LINEAR)


@pytest.mark.parametrize(
    ("scheme", "linear", "reason"),
    [
        (Scheme("int", 3, 64), LINEAR, "4-bit"),
        (Scheme("nf4"), LINEAR, "4-bit"),
        (Scheme("int", 4, 16), LINEAR, "at least 32"),
        (Scheme("int", 4, 48), LINEAR, "divides"),
        (Scheme(), LinearFacts(UP, 40, 128), "multiples of 32"),
        (Scheme("int", 4, None), LinearFacts(UP, 64, 40), "multiples of 32"),
        (Scheme(), LinearFacts(UP, 64, 128, transposed=True), "Conv1D"),
    ],
)
def test_refuses(scheme: Scheme, linear: LinearFacts, reason: str) -> None:
    assert reason in (FORMAT.check(scheme, linear) or "")


def test_config_names_what_is_left_out_for_every_engine() -> None:
    model = ModelFacts({UP: Scheme()}, (DOWN,), "lm_head", "float16", "model.layers")
    block = FORMAT.config(model)
    assert block["modules_to_not_convert"] == ["lm_head", DOWN]
    assert list(block["dynamic"]) == ["-:^lm_head$", r"-:^model\.layers\.10\.mlp\.down_proj$"]
    assert block["zero_point"] is True


@pytest.mark.parametrize(
    ("changes", "name", "expected"),
    [
        ({}, UP, Scheme("int", 4, 128, symmetric=False)),
        ({"modules_to_not_convert": None}, UP, Scheme("int", 4, 128, symmetric=False)),
        ({"modules_to_not_convert": ["down_proj"]}, DOWN, None),
        ({"modules_to_not_convert": ["layers.1"]}, DOWN, Scheme("int", 4, 128, symmetric=False)),
        ({"modules_to_not_convert": ["mlp.up"]}, UP, Scheme("int", 4, 128, symmetric=False)),
        ({"dynamic": {r"-:.*\.10\..*": {}}}, DOWN, None),
        ({}, "lm_head", None),
    ],
)
def test_blocks_of_other_tools(changes: dict[str, Any], name: str, expected: Scheme | None) -> None:
    assert FORMAT.parse(FOREIGN | changes)(name) == expected


def test_old_names_of_the_fields() -> None:
    old = {"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "version": "GEMM"}
    assert FORMAT.parse(old)(UP) == ASYMMETRIC


@pytest.mark.parametrize("changes", [{"version": "gemv"}, {"bits": 8}, {"zero_point": False}])
def test_other_layouts_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(RefusedError, match="not supported"):
        FORMAT.parse(FOREIGN | changes)(UP)


def test_a_group_size_that_is_none_is_an_input_error() -> None:
    with pytest.raises(InputError, match="group_size"):
        FORMAT.parse(FOREIGN | {"group_size": "big"})(UP)
