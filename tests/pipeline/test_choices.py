"""Groups that engines fuse, the schemes that suit them, and recipes that say what was chosen."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantkit.core.facts import LinearFacts
from quantkit.core.recipe import Recipe, SchemeSpec
from quantkit.core.rules import rules_of
from quantkit.core.scheme import Scheme
from quantkit.model.open import open_model
from quantkit.model.structure import LinearGroup
from quantkit.pipeline.choices import Choice, choices_of, overrides_for
from quantkit.pipeline.prepare import Prepared, parts_of, prepare

W4, W4_32, W8 = Scheme("int", 4, None), Scheme("int", 4, 32), Scheme("int", 8, None)


def prepared(folder: Path, *engines: str) -> Prepared:
    recipe = Recipe(
        "any", "gptq", "compressed-tensors", "", SchemeSpec("int", 4, "channel"), engines=engines
    )
    return prepare(open_model(folder), recipe)


def found(start: Prepared, schemes: list[Scheme]) -> list[Choice]:
    method, output, engines, _ = parts_of(start.plan.recipe)
    rules = rules_of(method, output, engines)
    quantized = [each.linear for each in start.plan.dispositions if each.scheme is not None]
    return choices_of(quantized, start.model.skeleton, start.structure, schemes, rules)


def test_a_choice_is_what_engines_fuse(tiny_checkpoint: Callable[..., Path]) -> None:
    choices = found(prepared(tiny_checkpoint()), [W4, W4_32])
    kinds = [[linear.name.rpartition(".")[2] for linear in choice.linears] for choice in choices]
    block = [["q_proj", "k_proj", "v_proj"], ["o_proj"], ["gate_proj", "up_proj"], ["down_proj"]]
    assert kinds == block * 2
    assert [choice.block for choice in choices] == [0] * 4 + [1] * 4
    assert {choice.schemes for choice in choices} == {(W4, W4_32, None)}


def test_schemes_that_do_not_suit_every_linear_are_left_out(
    tiny_checkpoint: Callable[..., Path],
) -> None:
    folder = tiny_checkpoint(intermediate_size=192)
    choices = found(prepared(folder, "vllm"), [Scheme("int", 4, 128), Scheme("int", 4, 16), W4])
    by_name = {choice.linears[0].name.rpartition(".")[2]: choice.schemes for choice in choices}
    assert by_name["q_proj"] == (Scheme("int", 4, 128), Scheme("int", 4, 16), W4, None)
    assert by_name["down_proj"] == (Scheme("int", 4, 16), W4, None)


CHOSEN = st.lists(st.sampled_from([W4, W4_32, W8, None]), min_size=8, max_size=8)


@settings(max_examples=40)
@given(CHOSEN)
def test_a_recipe_says_what_was_chosen(
    tiny_checkpoint_cache: Callable[..., Path], chosen: list[Scheme | None]
) -> None:
    start = prepared(tiny_checkpoint_cache("llama"))
    choices = found(start, [W4, W4_32, W8])
    overrides = overrides_for(choices, chosen, W4)
    pairs = zip(choices, chosen, strict=True)
    wanted = {linear.name: scheme for choice, scheme in pairs for linear in choice.linears}
    for name, scheme in wanted.items():
        spec: SchemeSpec | None = SchemeSpec("int", 4, "channel")
        for override in overrides:
            if override.covers(name):
                spec = None if override.skip else override.apply(SchemeSpec())
        assert (spec and spec.resolve(None)) == scheme


def experts_of(block: int) -> Choice:
    names = [
        f"model.layers.{block}.mlp.experts.{e}.{kind}" for e in range(4) for kind in ("a", "b")
    ]
    linears = tuple(LinearFacts(name, 8, 8) for name in names)
    return Choice(block, (LinearGroup(("x",), mixes_tokens=False),), linears, (W4, W8))


def test_experts_of_a_block_are_one_override() -> None:
    choices = [experts_of(block) for block in range(120)]
    overrides = overrides_for(choices, [W8] * 120, W4)
    assert choices[0].experts == 4
    assert all(len(override.match) <= 200 for override in overrides)
    assert len(overrides) < 8
    for choice in choices:
        for linear in choice.linears:
            assert sum(override.covers(linear.name) for override in overrides) == 1
    assert not any(o.covers("model.layers.120.mlp.experts.0.a") for o in overrides)


@pytest.mark.parametrize("name", ["model.layers.1.mlp.down_proj", "model.layers.11.mlp.down_proj"])
def test_a_block_is_not_taken_for_another(name: str) -> None:
    choice = Choice(
        1,
        (LinearGroup(("mlp.down_proj",), mixes_tokens=False),),
        (LinearFacts("model.layers.1.mlp.down_proj", 8, 8),),
        (W4, None),
    )
    (override,) = overrides_for([choice], [None], W4)
    assert override.skip
    assert override.covers(name) == (name == "model.layers.1.mlp.down_proj")
