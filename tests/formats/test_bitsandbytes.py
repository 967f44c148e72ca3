import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from quantkit.core.errors import InputError, RefusedError
from quantkit.core.facts import LinearFacts, ModelFacts
from quantkit.core.scheme import Scheme
from quantkit.formats.bitsandbytes import FORMAT, STATE
from quantkit.grid.qtensor import DoubleQuant, QTensor

UP, DOWN = "model.layers.0.mlp.up_proj", "model.layers.1.mlp.down_proj"
LINEAR = LinearFacts(UP, 32, 128)
PLAIN, DOUBLE = Scheme("nf4"), Scheme("nf4", double_quant=True)
FOREIGN = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}


def state(tensors: dict[str, torch.Tensor]) -> Any:
    return json.loads(bytes(tensors[STATE].tolist()))


def with_state(tensors: dict[str, torch.Tensor], text: str) -> dict[str, torch.Tensor]:
    return tensors | {STATE: torch.tensor(list(text.encode()), dtype=torch.uint8)}


def test_bytes_of_a_row(random_qtensor: Callable[..., QTensor]) -> None:
    qtensor = random_qtensor(PLAIN, 32, 128)
    tensors = FORMAT.encode(qtensor, "bfloat16")
    assert tensors["weight"].shape == (32 * 128 // 2, 1)
    first, second = qtensor.codes[0, :2].tolist()
    assert int(tensors["weight"][0]) == first * 16 + second
    assert tensors["weight.absmax"].dtype == torch.float32
    assert bytes(tensors[STATE].tolist()) == (
        b'{"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [32, 128]}'
    )


def test_state_of_double_quantization(random_qtensor: Callable[..., QTensor]) -> None:
    qtensor = random_qtensor(DOUBLE, 64, 512)
    tensors = FORMAT.encode(qtensor, "float16")
    assert qtensor.nested is not None
    found = state(tensors)
    assert found["nested_offset"] == qtensor.nested.offset.item()
    assert (found["nested_blocksize"], found["nested_dtype"]) == (256, "float32")
    assert tensors["weight.absmax"].dtype == torch.uint8
    assert tensors["weight.nested_absmax"].shape == (2,)


@pytest.mark.parametrize(
    "offset", [0.0, 1.0, -1.1754943508222875e-38, 1 / 3, 3.4028234663852886e38]
)
def test_state_has_one_length_whatever_the_offset(
    offset: float, random_qtensor: Callable[..., QTensor]
) -> None:
    qtensor = random_qtensor(DOUBLE, 32, 128)
    assert qtensor.nested is not None
    nested = DoubleQuant(qtensor.nested.codes, qtensor.nested.absmax, torch.tensor(offset))
    tensors = FORMAT.encode(QTensor(qtensor.codes, qtensor.scales, None, DOUBLE, nested), "float16")
    assert tensors[STATE].numel() == FORMAT.encode(qtensor, "float16")[STATE].numel()
    found = FORMAT.decode(tensors, DOUBLE, LINEAR)
    assert found.nested is not None
    assert torch.equal(found.nested.offset, torch.tensor(offset))


def test_the_file_knows_its_block_size(random_qtensor: Callable[..., QTensor]) -> None:
    scheme = Scheme("nf4", group_size=32)
    tensors = FORMAT.encode(random_qtensor(scheme, 32, 128), "float16")
    assert FORMAT.decode(tensors, PLAIN, LINEAR).scheme == scheme


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", InputError),
        ("{" * 300, InputError),
        ("[]", InputError),
        ("__import__('os').abort()", InputError),
        ('{"quant_type": "nf4"}', InputError),
        ('{"quant_type": "fp4", "blocksize": 64, "shape": [32, 128]}', RefusedError),
        ('{"quant_type": "nf4", "blocksize": 1, "shape": [32, 128]}', RefusedError),
        ('{"quant_type": "nf4", "blocksize": 64, "shape": [128, 32]}', InputError),
        (
            '{"quant_type": "nf4", "blocksize": 64, "shape": [32, 128], "nested_offset": "x"}',
            RefusedError,
        ),
    ],
)
def test_hostile_states(
    text: str, error: type[Exception], random_qtensor: Callable[..., QTensor]
) -> None:
    tensors = FORMAT.encode(random_qtensor(PLAIN, 32, 128), "float16")
    with pytest.raises(error, match=UP):
        FORMAT.decode(with_state(tensors, text), PLAIN, LINEAR)


def test_another_code_book_is_refused(random_qtensor: Callable[..., QTensor]) -> None:
    tensors = FORMAT.encode(random_qtensor(PLAIN, 32, 128), "float16")
    tensors["weight.quant_map"] = tensors["weight.quant_map"] * 2
    with pytest.raises(RefusedError, match="code book"):
        FORMAT.decode(tensors, PLAIN, LINEAR)


@pytest.mark.parametrize(
    ("scheme", "inputs", "reason"),
    [
        (Scheme(), 128, "NF4"),
        (Scheme("nf4", group_size=96), 192, "powers of two"),
        (Scheme("nf4", group_size=None), 128, "channel"),
        (Scheme("nf4", group_size=16), 128, "powers of two"),
        (PLAIN, 96, "cross rows"),
    ],
)
def test_refuses(scheme: Scheme, inputs: int, reason: str) -> None:
    assert reason in (FORMAT.check(scheme, LinearFacts(UP, 32, inputs)) or "")


def test_conv1d_has_its_place() -> None:
    assert FORMAT.check(PLAIN, LinearFacts("h.0.c_fc", 512, 128, transposed=True)) is None


def test_config_keeps_the_head_in_its_skip_list() -> None:
    block = FORMAT.config(ModelFacts({UP: DOUBLE}, (DOWN,), "lm_head", "bfloat16", "model.layers"))
    assert block["llm_int8_skip_modules"] == ["lm_head", DOWN]
    assert block["bnb_4bit_quant_type"] == "nf4"
    assert block["bnb_4bit_use_double_quant"] is True
    assert block["bnb_4bit_compute_dtype"] == "bfloat16"


@pytest.mark.parametrize(
    ("changes", "name", "expected"),
    [
        ({}, UP, PLAIN),
        ({"bnb_4bit_use_double_quant": True}, UP, DOUBLE),
        ({"llm_int8_skip_modules": ["mlp"]}, UP, None),
        ({"llm_int8_skip_modules": ["lm_head"]}, UP, PLAIN),
        ({"llm_int8_skip_modules": None}, "lm_head", None),
    ],
)
def test_blocks_of_other_tools(changes: dict[str, Any], name: str, expected: Scheme | None) -> None:
    assert FORMAT.parse(FOREIGN | changes)(name) == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"load_in_4bit": False, "load_in_8bit": True},
        {"bnb_4bit_quant_type": "fp4"},
        {"bnb_4bit_quant_storage": "bfloat16"},
    ],
)
def test_other_types_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(RefusedError, match="bitsandbytes"):
        FORMAT.parse(FOREIGN | changes)(UP)
