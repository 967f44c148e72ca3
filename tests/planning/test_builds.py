"""What is told of a model: builds in order, the one to take, and hints that hold."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import quantkit
from quantkit.api.planning import PLANNED_RECIPES
from quantkit.core.errors import RefusedError
from quantkit.core.recipe import Override
from quantkit.core.serving import Degrees, Load, Serving
from quantkit.core.training import Training
from quantkit.planning.builds import more_ranks, plan_builds
from quantkit.planning.model.weights import PlannedModel, stored_build
from quantkit.planning.serve.hardware import find_gpu
from quantkit.planning.serve.place import Place
from quantkit.planning.serve.settings import settings_of
from quantkit.planning.train.training import plan_training
from quantkit.recipes.loader import build_recipe, load_recipe
from tests.planning.conftest import serving_of

Planned = Callable[..., PlannedModel]
RECIPES = tuple(load_recipe(name) for name in ("smoothquant", "gptq", "nf4-double"))


def place(gpu: str, engine: str = "vllm", **degrees: int) -> Place:
    card, ranks = find_gpu(gpu), Degrees(**degrees)
    return Place(card, engine, settings_of(engine, card, ranks), ranks)


def serve(model: PlannedModel, gpu: str, load: Load, engine: str = "vllm") -> Serving:
    return serving_of(model, RECIPES, place(gpu, engine), load)


def test_the_largest_build_that_fits_is_chosen(planned: Planned) -> None:
    model = planned("Llama-3-8B")
    chosen = {
        gpu: found.chosen.name if (found := serve(model, gpu, Load(8192))).chosen else None
        for gpu in ("4090", "16GB@500GB/s", "3060")
    }
    assert list(chosen.values()) == [
        "bf16",
        "W8A8 channel sym (smoothquant)",
        "W4 g128 sym (gptq)",
    ]


def test_builds_come_in_falling_size_and_those_that_do_not_load_say_why(planned: Planned) -> None:
    found = serve(planned("Llama-3-8B"), "4090", Load(8192))
    sizes = [build.bytes for build in found.builds]
    assert sizes == sorted(sizes, reverse=True)
    (nf4,) = [o for o in found.builds if o.fault]
    assert "bitsandbytes" in (nf4.fault or "")
    assert (nf4.deployment, nf4.fits) == (None, False)
    other = serve(planned("Llama-3-8B"), "4090", Load(8192), "transformers")
    assert all(build.deployment for build in other.builds)


@pytest.mark.parametrize(
    ("name", "gpu", "load"),
    [
        ("Llama-3-8B", "3060", Load(4096, 64)),
        ("Llama-3-70B", "h100", Load(8192, 16)),
        ("Llama-3-70B", "4090", Load(4096)),
    ],
)
def test_every_hint_makes_it_fit(planned: Planned, name: str, gpu: str, load: Load) -> None:
    model = planned(name)
    found = serve(model, gpu, load)
    assert found.chosen is not None
    assert not found.chosen.fits
    assert found.hints
    for hint in found.hints:
        option, _, value = hint.partition(" ")
        where, wanted = place(gpu), load
        if option == "--context":
            wanted = Load(int(value), load.sequences)
        elif option == "--batch":
            wanted = Load(load.context, int(value))
        elif option == "--kv":
            wanted = Load(load.context, load.sequences, "fp8")
        elif option == "--tp":
            where = place(gpu, tensor=int(value))
        else:
            card = find_gpu(gpu)
            small = settings_of("vllm", card, Degrees(), {"chunk": 2048, "rows": 256})
            where = Place(card, "vllm", small)
        again = serving_of(model, RECIPES, where, wanted).chosen
        assert again is not None
        assert again.fits, hint


def test_a_cache_of_8_bits_is_offered_by_engines_that_have_one(planned: Planned) -> None:
    model, load = planned("Llama-3-8B"), Load(8192, 12)
    for engine, offered in (("sglang", True), ("transformers", False)):
        found = serve(model, "24GB", load, engine)
        assert found.hints
        assert ("--kv 8" in found.hints) == offered


def test_ranks_that_are_proposed_are_tried_with_their_own_reserve(planned: Planned) -> None:
    """SGLang sets aside more on 4 ranks; what the caller stated stays as it is."""
    model, load = planned("Llama-3-8B"), Load(8192, 48)
    found = serve(model, "4090", load, "sglang")
    (hint,) = [hint for hint in found.hints if hint.startswith("--tp ")]
    tensor = int(hint.removeprefix("--tp "))
    for ranks in (2, 4, 8):
        again = serving_of(model, RECIPES, place("4090", "sglang", tensor=ranks), load).chosen
        assert again is not None
        assert again.fits == (ranks >= tensor)
    assert place("4090", "sglang").at(Degrees(4)) == place("4090", "sglang", tensor=4)
    card = find_gpu("4090")
    stated = Place(
        card, "sglang", settings_of("sglang", card, Degrees(), {"reserve": 0, "chunk": 1024})
    )
    wide = stated.at(Degrees(4)).settings
    assert (wide.reserve, wide.chunk) == (0, 1024)
    assert wide.rows == settings_of("sglang", card, Degrees(4)).rows


def test_experts_are_not_dealt_where_there_are_none(planned: Planned) -> None:
    with pytest.raises(RefusedError, match="no experts"):
        serving_of(planned("Llama-3-8B"), RECIPES, place("4090", expert=8), Load(8192))
    with pytest.raises(RefusedError, match="8 experts do not"):
        serving_of(planned("Mixtral-8x7B"), RECIPES, place("h100", expert=16), Load(8192))


def test_what_fits_needs_no_hint_and_no_offload(planned: Planned) -> None:
    found = serve(planned("Llama-3-8B"), "h100", Load(8192))
    assert found.hints == ()
    assert {build.offload for build in found.builds} == {None}


def test_what_does_not_fit_is_split(planned: Planned) -> None:
    found = serve(planned("Llama-3-70B"), "4090", Load(4096), "transformers")
    assert found.chosen is not None
    assert found.chosen.offload is not None
    assert sum(found.chosen.offload.blocks.values()) == 80


def test_no_split_is_told_that_leaves_no_room_for_a_block(planned: Planned) -> None:
    """Eight sequences of 8192 tokens take 8 GiB of cache and activations of all prompts at once."""
    found = serve(planned("Llama-3-8B"), "12GB@300GB/s", Load(8192, 8), "transformers")
    assert found.chosen is not None
    assert found.chosen.deployment is not None
    assert not found.chosen.fits
    assert found.chosen.offload is None


def test_no_speed_is_told_of_what_does_not_fit(planned: Planned) -> None:
    for engine, gpu in (("vllm", "4090"), ("transformers", "4090")):
        found = serve(planned("Llama-3-8B"), gpu, Load(8192, 8), engine)
        assert {build.fits for build in found.builds if build.deployment} == {True, False}
        for build in found.builds:
            assert (build.decode is not None) == build.fits
            assert (build.prefill is not None) == build.fits


def test_more_ranks_are_legal_and_enough(planned: Planned) -> None:
    model = planned("Llama-3-70B")
    assert more_ranks(model, stored_build(model), place("h100"), Load(8192)) == 2
    assert more_ranks(model, stored_build(model), place("4090"), Load(8192)) == 8
    assert more_ranks(model, stored_build(model), place("4090", "transformers"), Load(8192)) is None


def test_degrees_that_no_build_has_are_refused(planned: Planned) -> None:
    with pytest.raises(RefusedError, match="3 tensor-parallel"):
        serving_of(planned("Llama-3-8B"), RECIPES, place("4090", tensor=3), Load(8192))


def test_bounds_are_of_the_chosen_load(planned: Planned) -> None:
    found = serve(planned("Llama-3-8B"), "4090", Load(8192, 4))
    plain, eight, four = found.builds[:3]
    assert plain.decode is not None
    assert four.decode is not None
    assert plain.decode.tokens_per_second < four.decode.tokens_per_second < 4 * 177
    assert plain.prefill is not None
    assert eight.prefill is not None
    ratio = eight.prefill.tokens_per_second / plain.prefill.tokens_per_second
    assert ratio == pytest.approx(661 / 165)  # int8 products
    unknown = serving_of(planned("Llama-3-8B"), (), place("80GB"), Load(8192))
    assert (unknown.builds[0].decode, unknown.builds[0].prefill) == (None, None)


EVERY = tuple(load_recipe(name) for name in PLANNED_RECIPES)


@pytest.mark.parametrize("recipe", PLANNED_RECIPES)
def test_planned_bytes_are_those_of_the_files(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path, recipe: str
) -> None:
    folder = str(tiny_checkpoint(dtype="bfloat16"))
    samples = min(2, load_recipe(recipe).calibration.samples)
    wanted = build_recipe(recipe, samples=samples, sequence_length=32)
    plan = quantkit.plan(folder, recipes=[wanted])
    made = quantkit.quantize(folder, tmp_path / "out", recipe=wanted, evaluate=False)
    (build,) = [build for build in plan.serving.builds if build.recipe] if plan.serving else []
    assert plan.files is not None
    assert plan.files.bytes == made.bytes
    headers = 0
    for path in (tmp_path / "out").glob("*.safetensors"):
        with path.open("rb") as file:
            headers += 8 + int.from_bytes(file.read(8), "little")
    assert build.bytes == made.bytes - headers


def bounds(model: PlannedModel, gpu: str, engine: str = "vllm") -> dict[str, float]:
    """How much faster than bf16 a prompt is at most, by recipe."""
    found = serving_of(model, EVERY, place(gpu, engine), Load(2048))
    speeds = {b.recipe.name if b.recipe else "": b.prefill for b in found.builds}
    plain = speeds.pop("")
    assert plain is not None
    return {n: s.tokens_per_second / plain.tokens_per_second for n, s in speeds.items() if s}


def test_prompts_are_as_fast_as_the_kernels_of_a_gpu(planned: Planned) -> None:
    model = planned("Llama-3-8B")
    hopper, blackwell, ada = (bounds(model, gpu) for gpu in ("h100", "b200", "l40s"))
    for name in ("fp8", "fp8-static"):
        assert hopper[name] == pytest.approx(1979 / 989)
        assert ada[name] == pytest.approx(733 / 362)
    assert (hopper["fp8-block"] > 1, ada["fp8-block"]) == (True, 1)
    for name in ("nvfp4", "nvfp4-w4a16", "mxfp4", "mxfp8"):
        assert hopper[name] == ada[name] == 1
    assert blackwell["nvfp4"] == blackwell["mxfp4"] == 4
    assert blackwell["mxfp8"] == blackwell["fp8"] == 2
    assert blackwell["nvfp4-w4a16"] == 1
    assert set(bounds(model, "b200", "transformers").values()) == {1}


@pytest.mark.parametrize(
    ("gpu", "noted"),
    [
        ("a100-80", {"fp8", "fp8-block", "fp8-static", "nvfp4"}),
        ("l40s", {"fp8-block", "nvfp4"}),
        ("h100", {"nvfp4"}),
        ("b200", {"mxfp4", "mxfp8"}),
    ],
)
def test_a_gpu_without_the_kernel_of_a_recipe_is_told_so(
    planned: Planned, gpu: str, noted: set[str]
) -> None:
    found = serving_of(planned("Llama-3-8B"), EVERY, place(gpu), Load(2048))
    notes = {b.recipe.name: b.note for b in found.builds if b.recipe and b.note}
    assert set(notes) == noted
    assert all(find_gpu(gpu).name in note for note in notes.values())
    refused = {b.recipe.name for b in found.builds if b.recipe and b.fault}
    assert refused == {"nf4-double"} | ({"smoothquant"} if gpu == "b200" else set())


@pytest.mark.parametrize(
    ("gpu", "load", "name"),
    [
        ("h100", Load(8192, 58), "smoothquant"),
        ("b200", Load(8192, 150), "fp8"),
        ("b200", Load(8192, 153), "nvfp4"),
        ("4090", Load(8192, 14), "gptq"),
    ],
)
def test_of_builds_of_equal_bits_the_gpus_own_is_chosen(
    planned: Planned, gpu: str, load: Load, name: str
) -> None:
    chosen = serving_of(planned("Llama-3-8B"), EVERY, place(gpu), load).chosen
    assert chosen is not None
    assert chosen.fits
    assert (chosen.recipe and chosen.recipe.name) == name


def test_the_bound_of_falcon_in_transformers_reads_the_heads_that_it_caches(
    planned: Planned,
) -> None:
    sizes = {"new_decoder_architecture": True, "num_kv_heads": 1, "num_attention_heads": 64}
    model = planned("Falcon-7B", **sizes, hidden_size=4096)
    grouped = planned("Falcon-7B", **sizes | {"num_kv_heads": 8}, hidden_size=4096)
    own, other = (
        _cache_that_is_read(each, engine)
        for each, engine in ((model, "vllm"), (model, "transformers"))
    )
    assert own == other  # one head is not repeated
    assert _cache_that_is_read(grouped, "vllm") == 8 * own
    assert _cache_that_is_read(grouped, "transformers") == 64 * own


def _cache_that_is_read(model: PlannedModel, engine: str) -> int:
    (build,) = serving_of(model, (), place("h100", engine), Load(2048, 2)).builds
    assert build.decode is not None
    return int(build.decode.rule.partition(" of weights + ")[2].partition(" of cache")[0])


@pytest.mark.parametrize("gpu", [None, "4090"])
def test_a_recipe_that_quantizes_nothing_makes_no_build(planned: Planned, gpu: str | None) -> None:
    model = planned("Llama-3-8B")
    bare = replace(model, kinds=tuple(kind for kind in model.kinds if not kind.quantizable))
    nothing = replace(RECIPES[1], overrides=(Override("*", skip=True),))
    where = place(gpu) if gpu else None
    for what, recipes in ((bare, RECIPES), (model, (nothing,))):
        found = serving_of(what, recipes, where, Load(8192), requested=True)
        (own,) = [o for o in found.builds if not o.recipe]
        assert own.fault is None
        for build in found.builds:
            if build is not own:
                assert "quantizes no linear" in (build.fault or "")
                assert (build.parts, build.fits, build.deployment) == ({}, False, None)
        assert "quantizes no linear" in (found.refused or "")


def test_what_is_quantized_already_has_no_bound_of_a_prompt_and_is_not_trained(
    planned: Planned,
) -> None:
    model = replace(planned("Llama-3-8B"), quantized="gptq")
    (build,) = serving_of(model, (), place("4090"), Load(8192)).builds
    assert build.prefill is None
    with pytest.raises(RefusedError, match="quantized already"):
        plan_training(model, Training(), None, Load(2048))
    again = serving_of(model, RECIPES[1:2], place("4090"), Load(8192), requested=True)
    assert "its linears are not known" in (again.refused or "")


def test_the_run_that_makes_the_build_is_planned(planned: Planned) -> None:
    model = planned("Llama-3-8B")
    found = plan_builds(model, RECIPES, place("3060"), Load(4096))
    assert found.serving is not None
    chosen = found.serving.chosen
    assert chosen is not None
    assert found.recipe == chosen.recipe
    assert len(found.schemes) == 32 * 7
    assert found.files is not None
    assert found.memory is not None
    assert 0 < found.files.bytes - chosen.bytes < 10**6  # headers
    assert found.memory.peak.bytes > 2 * sum(chosen.parts.values()) // 32  # two blocks
    kept = plan_builds(model, RECIPES, place("h100"), Load(4096))
    assert (kept.selected, kept.files, kept.memory, kept.time) == (None, None, None, None)
    with pytest.raises(LookupError):
        _ = kept.recipe


def test_no_run_is_planned_of_a_model_that_transformers_cannot_build(planned: Planned) -> None:
    model, recipe = planned("DeepSeek-V3"), RECIPES[1:2]
    there, load = place("h200", tensor=8), Load(4096)
    assert plan_builds(model, recipe, there, load, requested=True).files is not None
    model = replace(model, unbuilt="transformers has no class for it")
    plan = plan_builds(model, recipe, there, load, requested=True)
    assert plan.files is None
    found = plan.serving
    assert found is not None
    assert "transformers has no class for it" in (found.refusal or "")
    assert found.refused == found.refusal
    assert serving_of(model, recipe, there, load).refused is None
