"""Degrees at which engines take a build, by hand-worked cases."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quantkit.core import registry
from quantkit.core.engine import Engine
from quantkit.core.errors import RefusedError
from quantkit.core.serving import Degrees
from quantkit.planning.model.opened import open_model
from quantkit.planning.model.weights import PlannedModel, recipe_build, stored_build
from quantkit.planning.serve.legal import build_fault, degree_fault, legal_degrees, require_legal
from quantkit.recipes.loader import build_recipe

Planned = Callable[..., PlannedModel]


def engine(name: str) -> Engine:
    found: Engine = registry.load("engines", name, "ENGINE")
    return found


@pytest.mark.parametrize(
    ("name", "group", "served", "expected"),
    [
        ("Llama-3-70B", 128, "vllm", [1, 2, 4, 8, 16, 32]),
        ("Llama-2-7B", 128, "vllm", [1, 2]),  # 11008 / 4 = 21.5 groups of 128
        ("Llama-2-7B", 32, "vllm", [1, 2, 4, 8]),
        ("Llama-2-7B", 32, "sglang", [1, 2]),  # 11008 / 4 = 21.5 tiles of 128
        ("Qwen2.5-7B", 128, "vllm", [1, 2, 4]),  # 28 heads
        ("Qwen3-32B", 128, "vllm", [1, 2, 4, 8]),  # 25600 / 16 = 12.5 groups of 128
    ],
)
def test_legal_degrees(
    planned: Planned, name: str, group: int, served: str, expected: list[int]
) -> None:
    model = planned(name)
    build = recipe_build(model, build_recipe("gptq", group_size=group))
    assert legal_degrees(engine(served), model, build, Degrees()) == expected


def test_a_plain_model_has_only_heads_and_widths_to_divide(planned: Planned) -> None:
    model = planned("Llama-2-7B")
    assert legal_degrees(engine("vllm"), model, stored_build(model), Degrees()) == [
        1, 2, 4, 8, 16, 32
    ]  # fmt: skip


def test_whole_experts_need_not_be_divided(planned: Planned) -> None:
    model = planned("Qwen3-30B-A3B")  # experts of width 768: 768 / 4 = 1.5 groups of 128
    build = recipe_build(model, build_recipe("gptq", group_size=128))
    assert degree_fault(engine("vllm"), model, build, Degrees(4)) is not None
    assert degree_fault(engine("vllm"), model, build, Degrees(4, 1, 4)) is None


def test_a_refusal_says_why_and_names_a_legal_degree(planned: Planned) -> None:
    model = planned("Llama-2-7B")
    build = recipe_build(model, build_recipe("gptq", group_size=128))
    with pytest.raises(RefusedError) as caught:
        require_legal(engine("vllm"), model, build, Degrees(4))
    assert "2752 inputs per rank are not a multiple of the group size 128" in (
        caught.value.why or ""
    )
    assert caught.value.hint == "--tp 2"


@pytest.mark.parametrize(
    ("served", "recipe", "capability", "reason"),
    [
        ("vllm", "gptq", "7.5", None),
        ("vllm", "gptq", "7.0", "7.5"),
        ("vllm", "smoothquant", "9.0", None),
        ("vllm", "smoothquant", "12.0", "Blackwell"),
        ("vllm", "w8a16", "12.0", None),
        ("vllm", "gptq", "metal", "Apple"),
        ("vllm", "nf4", "8.9", "bitsandbytes"),
        ("vllm", None, "metal", "Apple"),
        ("vllm", None, "gfx90a", None),
        ("vllm", None, "7.0", "7.5"),
        ("vllm", "gptq", "gfx942", None),
        ("sglang", None, "metal", "Apple"),
        ("sglang", None, "gfx942", None),
        ("sglang", "nf4", "gfx942", "AMD"),
        ("sglang", "nf4", "7.5", None),
        ("transformers", None, "metal", None),
        ("sglang", "gptq", "7.5", "8.0"),
        ("sglang", "gptq", "gfx942", None),
        ("transformers", "nf4", "8.9", None),
    ],
)
def test_kernels_by_gpu(
    planned: Planned, served: str, recipe: str | None, capability: str, reason: str | None
) -> None:
    model = planned("Llama-3-8B")
    build = recipe_build(model, build_recipe(recipe)) if recipe else stored_build(model)
    fault = build_fault(engine(served), model, build, capability)
    assert fault is None if reason is None else reason in (fault or "")


def test_what_an_engine_refuses_of_a_family_is_refused_by_the_plan(
    small: Callable[[str], Any], tmp_path: Path
) -> None:
    """Attention and Mamba layers become the same, and the engine takes only the first."""
    (tmp_path / "config.json").write_text(json.dumps(small("jamba").to_dict()))
    jamba = open_model(str(tmp_path))
    build = recipe_build(jamba, build_recipe("gptq-compressed", group_size="channel"))
    fault = build_fault(engine("vllm"), jamba, build, None)
    assert fault == "vLLM does not quantize the Mamba layers of jamba"
    assert build_fault(engine("sglang"), jamba, build, None) is None


def test_experts_that_the_files_hold_merged_are_refused_by_the_plan(
    tiny_checkpoint: Callable[..., Path],
) -> None:
    model = open_model(str(tiny_checkpoint("experts_fused", dtype="bfloat16")))
    build = recipe_build(model, build_recipe("gptq-compressed"))
    fault = build_fault(engine("vllm"), model, build, None)
    assert fault is not None
    assert "stores merged" in fault
