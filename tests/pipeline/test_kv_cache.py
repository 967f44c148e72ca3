"""Scales of keys and values: found beside attention's output, stored, read back, refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from quantkit.checkpoint.writer import ArtifactWriter
from quantkit.core.errors import InputError, RefusedError
from quantkit.core.resources import PAUSED
from quantkit.core.session import Session
from quantkit.grid.kv_cache import CacheScales, candidates
from quantkit.model.attention import AttentionCall, attention_through
from quantkit.model.open import open_model
from quantkit.model.opened import OpenModel, load_dense
from quantkit.pipeline.blockloop import _run
from quantkit.pipeline.build import build, solver_of
from quantkit.pipeline.cache_pause import least_error
from quantkit.pipeline.cached import cached
from quantkit.pipeline.groups import BlockState, Groups
from quantkit.pipeline.prepare import Prepared
from quantkit.pipeline.start import start
from quantkit.pipeline.write import planned_tensors
from quantkit.recipes.loader import build_recipe
from quantkit.runs.forecast import plan_prepared
from tests.conftest import TinyCheckpoint

IDS = torch.randint(2, 250, (5, 96), generator=torch.Generator().manual_seed(0))
SHARD = 1 << 30
KEY = "model.layers.1.self_attn.k_scale"


def prepared_for(folder: Path, recipe: str = "fp8kv", *settings: str) -> Prepared:
    return start(open_model(folder), build_recipe(recipe, samples=4, settings=settings))


def made(prepared: Prepared, folder: Path) -> OpenModel:
    specs = planned_tensors(prepared.model, prepared.plan.schemes, prepared.format, prepared.cache)
    with ArtifactWriter(folder, specs, SHARD) as writer:
        build(prepared, writer, IDS)
        writer.publish()
    return open_model(folder)


@pytest.fixture
def artifact(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> OpenModel:
    """A model in 16 bits with scales of its cache, in a folder that may be changed."""
    return made(prepared_for(tiny_checkpoint("llama", dtype="bfloat16")), tmp_path / "fp8kv")


def attended(model: OpenModel) -> list[AttentionCall]:
    """The calls of attention while a model reads IDS."""
    calls: list[AttentionCall] = []

    def see(call: AttentionCall) -> object:
        calls.append(call)
        return call.run()

    with attention_through(see):
        for _ in model.walk(IDS):
            pass
    return calls


def lost(call: AttentionCall, scales: CacheScales) -> float:
    """The squared error of a call's output beside a cache with these scales."""
    key, value = scales.change(call.key, call.value)
    rounded = replace(call, key=key, value=value).run()[0]
    return float((rounded.double() - call.run()[0].double()).square().sum())


@pytest.mark.parametrize("size", [1e-3, 1.0, 40.0])
def test_no_worse_than_scales_that_span_all_nor_than_one(
    tiny_checkpoint: TinyCheckpoint, size: float
) -> None:
    better = 0
    for call in attended(open_model(tiny_checkpoint("llama"))):
        given = replace(call, key=call.key * size, value=call.value * size)
        largest = [states.abs().max().item() for states in (given.key, given.value)]
        found = lost(given, least_error(given, *largest))
        spans = lost(given, CacheScales(*(candidates(each)[0] for each in largest)))
        assert max(largest) < 448
        assert found <= min(spans, lost(given, CacheScales(1.0, 1.0))) * (1 + 1e-6)
        better += found < 0.99 * spans
    assert better


def test_an_artifact_has_the_scales_and_all_else_as_it_was(
    tiny_checkpoint: TinyCheckpoint, artifact: OpenModel
) -> None:
    source = load_file(tiny_checkpoint("llama", dtype="bfloat16") / "model.safetensors")
    stored = load_file(artifact.checkpoint.folder / "model.safetensors")
    for path, scales in artifact.cache.items():
        assert stored.pop(f"{path}.k_scale").tolist() == [scales.key]
        assert stored.pop(f"{path}.v_scale").tolist() == [scales.value]
    assert len(artifact.cache) == 2
    assert stored.keys() == source.keys()
    assert all(torch.equal(stored[name], source[name]) for name in source)
    config = json.loads((artifact.checkpoint.folder / "config.json").read_text())
    block = config["quantization_config"]
    assert block["config_groups"] == {}
    assert block["kv_cache_scheme"]["type"] == "float"


@pytest.mark.parametrize("recipe", ["fp8kv", "w4a16-fp8kv"])
def test_the_planned_bytes_are_those_of_the_files(
    tiny_checkpoint: TinyCheckpoint, tmp_path: Path, recipe: str
) -> None:
    prepared = prepared_for(tiny_checkpoint("llama", dtype="bfloat16"), recipe)
    files = plan_prepared(prepared, tuple(IDS.shape), SHARD).files
    model = made(prepared, tmp_path / "made")
    assert files is not None
    size = (model.checkpoint.folder / "model.safetensors").stat().st_size
    assert files.bytes == size
    assert model.cache


@pytest.mark.parametrize(
    "family", ["llama", "phi", "gemma3", "experts_fused", "hybrid", "linear_attention"]
)
def test_the_block_loop_rounds_as_the_artifact_does(
    tiny_checkpoint: TinyCheckpoint, family: str
) -> None:
    prepared = prepared_for(tiny_checkpoint(family, dtype="bfloat16"))
    model, solver = prepared.model, solver_of(prepared, PAUSED, Session())
    batches, calls = model.enter(IDS, keep=lambda hidden: hidden)
    for index in range(len(model.skeleton.blocks)):
        block = model.load_block(index)
        state = BlockState(model, index, block, prepared.structure.of(index))
        own = [call[index] for call in calls]
        with torch.no_grad():
            plain = [call.run(block, h) for call, h in zip(own, batches, strict=True)]
            read = replace(model, cache=state.cache)
            given = list(batches)
            _run(Groups(state, solver), batches, own)
            rounded = replace(read, cache=state.cache).load_block(index)
            expected = [call.run(rounded, h) for call, h in zip(own, given, strict=True)]
        assert all(map(torch.equal, batches, expected))
        assert bool(state.cache) != all(map(torch.equal, batches, plain))


def test_scales_count_all_tokens(artifact: OpenModel) -> None:
    plain = replace(artifact, cache={})
    (first,) = [path for path in artifact.cache if ".0." in path]
    calls = [call for call in attended(plain) if call.module.layer_idx == 0]
    for states, scale in (
        ("key", artifact.cache[first].key),
        ("value", artifact.cache[first].value),
    ):
        largest = max(getattr(call, states).abs().max().item() for call in calls)
        assert largest <= 448 * scale


def test_the_cache_of_generated_text_is_rounded(artifact: OpenModel) -> None:
    with torch.no_grad():
        model = load_dense(artifact).eval()
        whole = model(IDS).logits
        plain = replace(open_model(artifact.checkpoint.folder), cache={})
        assert not torch.equal(whole, load_dense(plain).eval()(IDS).logits)
        first = model(IDS[:, :-1], use_cache=True)
        last = model(IDS[:, -1:], past_key_values=first.past_key_values).logits
    torch.testing.assert_close(last, whole[:, -1:], rtol=0, atol=0.02)


def test_another_cache_than_the_stored_one(
    artifact: OpenModel, tiny_checkpoint: TinyCheckpoint
) -> None:
    """Engines assume scales of 1 where a file has none."""
    assert cached(artifact, "stored") is artifact
    assert cached(artifact, "16-bit").cache == {}
    assert cached(artifact, "fp8").cache == artifact.cache
    plain = open_model(tiny_checkpoint("llama", dtype="bfloat16"))
    assert cached(plain, "fp8").cache == dict.fromkeys(artifact.cache, CacheScales(1.0, 1.0))
    with pytest.raises(RefusedError, match="latent"):
        cached(open_model(tiny_checkpoint("latent_attention")), "fp8")


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (torch.zeros(1), "contains 0"),
        (torch.tensor([-0.5]), "contains -0.5"),
        (torch.tensor([float("nan")]), "contains nan"),
        (torch.tensor([float("inf")]), "contains inf"),
        (torch.ones(2), r"F32 \(2,\)"),
        (torch.ones(1, dtype=torch.int32), "I32"),
        (None, "is not in"),
    ],
)
def test_hostile_scales(artifact: OpenModel, value: torch.Tensor | None, told: str) -> None:
    file = artifact.checkpoint.folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    del artifact
    tensors.pop(KEY)
    if value is not None:
        tensors[KEY] = value
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(InputError, match=told) as error:
        open_model(file.parent)
    assert error.value.hint


def test_an_artifact_without_any_scale(artifact: OpenModel) -> None:
    file = artifact.checkpoint.folder / "model.safetensors"
    kept = {name: t.clone() for name, t in load_file(file).items() if not name.endswith("_scale")}
    save_file(kept, file, metadata={"format": "pt"})
    with pytest.raises(InputError, match="no scales of its KV cache") as error:
        open_model(file.parent)
    assert error.value.hint


@pytest.mark.parametrize("field", [{"num_bits": 4}, {"strategy": "attn_head"}, {"dynamic": True}])
def test_other_caches_are_refused(artifact: OpenModel, field: dict[str, object]) -> None:
    file = artifact.checkpoint.folder / "config.json"
    config = json.loads(file.read_text())
    config["quantization_config"]["kv_cache_scheme"] |= field
    file.write_text(json.dumps(config))
    with pytest.raises(RefusedError, match="kv_cache_scheme") as error:
        open_model(file.parent)
    assert error.value.hint


@pytest.mark.parametrize("family", ["latent_attention", "bloom"])
def test_models_without_a_plain_cache_are_refused(
    tiny_checkpoint: TinyCheckpoint, family: str
) -> None:
    with pytest.raises(RefusedError, match="KV cache") as error:
        prepared_for(tiny_checkpoint(family, dtype="bfloat16"))
    assert error.value.hint


@pytest.mark.parametrize(
    ("recipe", "settings", "told"),
    [
        ("gptq", ["kv_cache=fp8-tensor"], "no place for the scales"),
        ("fp8kv", ["calibration.samples=0"], "need calibration text"),
        ("fp8kv", ["engines=[sglang]"], "has not been seen to apply"),
    ],
)
def test_what_cannot_hold_scales_is_refused(
    tiny_checkpoint: TinyCheckpoint, recipe: str, settings: list[str], told: str
) -> None:
    wanted = build_recipe(recipe, settings=settings)
    with pytest.raises((RefusedError, InputError), match=told) as error:
        start(open_model(tiny_checkpoint("llama", dtype="bfloat16")), wanted)
    assert error.value.hint
