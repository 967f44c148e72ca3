from collections.abc import Callable
from typing import Any

import pytest
import torch

from quantkit.core.errors import InputError, RefusedError
from quantkit.core.facts import LinearFacts, ModelFacts
from quantkit.core.format import Format
from quantkit.core.scheme import Scheme
from quantkit.formats import gptq, gptq_v2
from quantkit.grid.qtensor import QTensor

UP, DOWN, HEAD = "model.layers.0.mlp.up_proj", "model.layers.0.mlp.down_proj", "lm_head"
LINEAR = LinearFacts(UP, 32, 128)
FORMATS = [gptq.FORMAT, gptq_v2.FORMAT]
FOREIGN = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}


def facts(schemes: dict[str, Scheme], *skipped: str) -> ModelFacts:
    return ModelFacts(schemes, skipped, HEAD, "float16", "model.layers")


@pytest.mark.parametrize(
    ("output", "bits", "word"),
    [
        (gptq.FORMAT, 4, 0x77777777),
        (gptq.FORMAT, 2, 0x55555555),
        (gptq.FORMAT, 8, 0x7F7F7F7F),
        (gptq_v2.FORMAT, 4, 0x88888888 - 2**32),
    ],
)
def test_symmetric_zero_points(
    output: Format, bits: int, word: int, random_qtensor: Callable[..., QTensor]
) -> None:
    tensors = output.encode(random_qtensor(Scheme("int", bits, 64), 32, 128), "float16")
    assert set(tensors["qzeros"].flatten().tolist()) == {word}


def test_layout_of_each_tensor(random_qtensor: Callable[..., QTensor]) -> None:
    qtensor = random_qtensor(Scheme("int", 4, 32, symmetric=False), 32, 128)
    tensors = gptq_v2.FORMAT.encode(qtensor, "float16")
    assert {name: (str(t.dtype), tuple(t.shape)) for name, t in tensors.items()} == {
        "qweight": ("torch.int32", (16, 32)),
        "qzeros": ("torch.int32", (4, 4)),
        "scales": ("torch.bfloat16", (4, 32)),
        "g_idx": ("torch.int32", (128,)),
    }
    assert tensors["g_idx"].tolist() == [i // 32 for i in range(128)]
    first = [(int(tensors["qweight"][0, 5]) >> (4 * i)) & 15 for i in range(8)]
    assert first == qtensor.codes[5, :8].tolist()
    assert qtensor.zeros is not None
    zero = [(int(tensors["qzeros"][3, 0]) >> (4 * i)) & 15 for i in range(8)]
    assert zero == qtensor.zeros[:8, 3].tolist()


def test_asymmetric_version_1_is_read_but_not_written(
    random_qtensor: Callable[..., QTensor],
) -> None:
    scheme = Scheme("int", 4, 64, symmetric=False)
    assert "gptq-v2" in (gptq.FORMAT.check(scheme, LINEAR) or "")
    qtensor = random_qtensor(scheme, 32, 128)
    tensors = gptq.encode(qtensor, zero_offset=1)
    found = gptq.FORMAT.decode(tensors, scheme, LINEAR)
    assert torch.equal(found.dequantize(), qtensor.dequantize())
    tensors["qzeros"][0, 0] = -1
    with pytest.raises(RefusedError, match="all-ones"):
        gptq.FORMAT.decode(tensors, scheme, LINEAR)


@pytest.mark.parametrize("output", FORMATS)
def test_other_zero_points_in_a_symmetric_file_are_an_error(
    output: Format, random_qtensor: Callable[..., QTensor]
) -> None:
    tensors = output.encode(random_qtensor(Scheme(), 32, 128), "float16")
    tensors["qzeros"][0, 0] = 0
    with pytest.raises(InputError, match="values other than 8"):
        output.decode(tensors, Scheme(), LINEAR)


def test_groups_out_of_order_are_refused_by_name(
    random_qtensor: Callable[..., QTensor],
) -> None:
    tensors = gptq.FORMAT.encode(random_qtensor(Scheme(), 32, 128), "float16")
    tensors["g_idx"] = tensors["g_idx"].flip(0)
    with pytest.raises(RefusedError, match="desc_act"):
        gptq.FORMAT.decode(tensors, Scheme(), LINEAR)
    del tensors["g_idx"]  # GPTQModel fills it in as well
    gptq.FORMAT.decode(tensors, Scheme(), LINEAR)


@pytest.mark.parametrize(
    ("bits", "outputs", "inputs"), [(3, 32, 48), (3, 40, 64), (2, 8, 64), (8, 32, 2), (4, 4, 64)]
)
def test_part_filled_words_are_refused(bits: int, outputs: int, inputs: int) -> None:
    fault = gptq.FORMAT.check(Scheme("int", bits, None), LinearFacts(UP, outputs, inputs))
    assert fault is not None
    assert "32-bit words" in fault
    assert gptq.FORMAT.check(Scheme("int", bits, None), LinearFacts(UP, 96, 96)) is None


@pytest.mark.parametrize(
    ("scheme", "reason"),
    [
        (Scheme("int", 5, 64), "not 5"),
        (Scheme("nf4"), "NF4"),
        (Scheme("int", 8, None, activation="int8-token"), "W8A8"),
        (Scheme("int", 4, 48), "does not divide"),
    ],
)
def test_other_schemes_are_refused(scheme: Scheme, reason: str) -> None:
    for output in FORMATS:
        assert reason in (output.check(scheme, LINEAR) or "")


def test_config_of_a_model_without_exceptions() -> None:
    block = gptq.FORMAT.config(facts({UP: Scheme("int", 4, None), DOWN: Scheme("int", 4, None)}))
    stated = ("quant_method", "bits", "group_size", "sym", "desc_act", "checkpoint_format")
    assert [block[key] for key in stated] == ["gptq", 4, -1, True, False, "gptq"]
    assert block["lm_head"] is False
    # vLLM then sees in the file what is quantized, under its own names
    assert "modules_in_block_to_quantize" not in block


def test_exclusions_stand_in_both_fields() -> None:
    block = gptq.FORMAT.config(facts({UP: Scheme()}, DOWN))
    assert block["dynamic"] == {r"-:^model\.layers\.0\.mlp\.down_proj$": {}}
    assert block["modules_in_block_to_quantize"] == [["mlp.up_proj"]]


def test_full_names_are_those_of_the_checkpoint_and_of_the_model() -> None:
    """transformers looks for its own: `language_model` stands elsewhere in them."""
    paths = ("language_model.model.layers", "model.language_model.layers")
    names = [f"{path}.{i}.{part}" for i in (0, 1) for path in paths for part in ("up", "down")]
    schemes = dict.fromkeys(names, Scheme())
    left = [f"{path}.0.up" for path in paths]
    for name in left:
        del schemes[name]
    block = gptq.FORMAT.config(ModelFacts(schemes, tuple(left), HEAD, "float16", *paths))
    (listed,) = block["modules_in_block_to_quantize"]
    assert sorted(listed) == ["down", *(f"{path}.1.up" for path in paths)]
    assert {n for n in names if gptq.FORMAT.parse(block)(n) is None} == set(left)


def test_a_suffix_left_out_in_one_block_is_listed_by_full_name() -> None:
    names = [f"model.layers.{i}.mlp.{part}" for i in (0, 1, 11) for part in ("up", "up_2", "down")]
    schemes = dict.fromkeys(names, Scheme())
    del schemes["model.layers.1.mlp.up"]
    block = gptq.FORMAT.config(facts(schemes, "model.layers.1.mlp.up"))
    (listed,) = block["modules_in_block_to_quantize"]
    assert listed == ["model.layers.0.mlp.up", "mlp.up_2", "mlp.down", "model.layers.11.mlp.up"]
    assert {n for n in names if gptq.FORMAT.parse(block)(n) is None} == {"model.layers.1.mlp.up"}


def test_one_scheme_for_all() -> None:
    with pytest.raises(RefusedError, match="one scheme"):
        gptq.FORMAT.config(facts({UP: Scheme(), DOWN: Scheme("int", 8, 64)}))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, Scheme("int", 4, 128)),
        ({"group_size": -1, "sym": False}, Scheme("int", 4, None, symmetric=False)),
        ({"dynamic": {r"+:.*\.up_proj": {"bits": 8, "group_size": 32}}}, Scheme("int", 8, 32)),
        ({"dynamic": {r".*\.0\..*": {"sym": False}}}, Scheme("int", 4, 128, symmetric=False)),
        ({"dynamic": {r"-:.*\.up_proj": {}}}, None),
        ({"modules_in_block_to_quantize": [["mlp.down_proj"]]}, None),
        ({"modules_in_block_to_quantize": ["mlp.up_proj"]}, Scheme("int", 4, 128)),
    ],
)
def test_blocks_of_other_tools(changes: dict[str, Any], expected: Scheme | None) -> None:
    assert gptq.FORMAT.parse(FOREIGN | changes)(UP) == expected


def test_the_head_is_dense_unless_stated() -> None:
    assert gptq.FORMAT.parse(FOREIGN)(HEAD) is None
    assert gptq.FORMAT.parse(FOREIGN | {"lm_head": True})(HEAD) == Scheme("int", 4, 128)


@pytest.mark.parametrize(
    "changes", [{"bits": 5}, {"bits": None}, {"group_size": 0}, {"dynamic": {"+:(": {}}}]
)
def test_nonsense_is_an_input_error(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        gptq.FORMAT.parse(FOREIGN | changes)(UP)


def test_layout_without_a_name_is_version_1() -> None:
    assert gptq.FORMAT.matches(FOREIGN)
    assert not gptq_v2.FORMAT.matches(FOREIGN)
    assert gptq_v2.FORMAT.matches(FOREIGN | {"format": "gptq_v2"})
    assert not gptq.FORMAT.matches(FOREIGN | {"checkpoint_format": "marlin"})
