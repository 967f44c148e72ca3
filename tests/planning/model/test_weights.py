"""What builds weigh: known answers, and the files that the writer would make."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from quantkit.core.errors import InputError, RefusedError
from quantkit.core.scheme import Scheme
from quantkit.planning.model.weights import PlannedModel, recipe_build, stored_build, weigh
from quantkit.recipes.loader import build_recipe

Planned = Callable[..., PlannedModel]
PACKED = "gptq-compressed"


@pytest.mark.parametrize(
    ("name", "recipe", "expected"),
    [
        ("Llama-2-7B", "gptq", 3_893_862_400),
        ("Llama-2-7B", "awq", 3_889_307_648),
        ("Llama-2-7B", PACKED, 3_864_014_336),
        ("Llama-3-8B", PACKED, 5_700_595_200),
        ("Llama-3-8B", "gptq", 5_732_835_328),
        ("Llama-3-8B", "awq", 5_727_854_592),
        ("Llama-3-70B", PACKED, 39_500_407_552),
        ("Llama-3-70B", "gptq", 39_792_689_152),
        ("Llama-3.1-405B", PACKED, 215_512_692_512),
        ("Qwen3-32B", PACKED, 19_203_408_896),
    ],
)
def test_known_sizes(planned: Planned, name: str, recipe: str, expected: int) -> None:
    model = planned(name)
    build = recipe_build(model, build_recipe(recipe, group_size=128))
    assert sum(weigh(model, build).values()) == expected


def test_channel_scales_in_16_bits_take_what_those_of_fp8_would(planned: Planned) -> None:
    model = planned("Llama-3-70B")
    build = recipe_build(model, build_recipe("w8a16"))
    linears = sum(kind.count for kind in model.kinds if kind.quantizable)
    shapes = 16 * linears  # compressed-tensors' weight_shape
    assert sum(weigh(model, build).values()) - shapes == 72_669_806_592


def test_an_unknown_method_is_refused(planned: Planned) -> None:
    model, recipe = planned("Llama-2-7B"), build_recipe("gptq", group_size=128)
    with pytest.raises(InputError, match="unknown method"):
        recipe_build(model, replace(recipe, method="gptr"))


def test_double_quantized_nf4_adds_its_state_to_each_linear(planned: Planned) -> None:
    model = planned("Llama-3-8B")
    total = sum(weigh(model, recipe_build(model, build_recipe("nf4-double"))).values())
    states = total - 5_702_539_264
    assert 224 * 160 < states < 224 * 185


def test_a_plain_model_weighs_two_bytes_a_parameter(
    planned: Planned, known_model: dict[str, Any]
) -> None:
    model = planned(known_model["name"])
    buffers = sum(4 * t.shape[0] for t in model.inventory.tensors if t.buffer)
    size = 4 if model.architecture.dtype == "F32" else 2
    expected = size * known_model["parameters"] + buffers
    assert sum(weigh(model, stored_build(model)).values()) == expected


def test_overrides_give_linears_schemes_of_their_own(planned: Planned) -> None:
    model = planned("SmolLM2-135M")
    whole = build_recipe(PACKED, group_size=64)
    skip = "overrides=[{match: '*.0.mlp.down_proj', skip: true}]"
    part = build_recipe(PACKED, group_size=64, settings=[skip])
    build = recipe_build(model, part)
    assert (build.uniform, len(build.schemes)) == (False, 209)
    bytes_of = [sum(weigh(model, recipe_build(model, r)).values()) for r in (whole, part)]
    dense, packed = 2 * 576 * 1536, 576 * 1536 // 2 + 2 * 576 * 24 + 16
    assert bytes_of[1] - bytes_of[0] == dense - packed


def test_the_group_size_is_the_largest_that_divides_every_width(planned: Planned) -> None:
    build = recipe_build(planned("SmolLM2-135M"), build_recipe("gptq"))
    assert set(build.schemes.values()) == {Scheme("int", 4, 64)}


@pytest.mark.parametrize(
    ("recipe", "changes", "kind"),
    [
        ("gptq", {"group_size": 128}, RefusedError),
        ("gptq", {"settings": ["overrides=[{match: '*.nothing', skip: true}]"]}, InputError),
    ],
)
def test_what_cannot_be_quantized_so_is_refused(
    planned: Planned, recipe: str, changes: dict[str, object], kind: type[Exception]
) -> None:
    with pytest.raises(kind):
        recipe_build(planned("SmolLM2-135M"), build_recipe(recipe, **changes))  # type: ignore[arg-type]  # of several kinds
