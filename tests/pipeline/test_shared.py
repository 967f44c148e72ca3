"""Linears that stand in several blocks: quantized once, and the same in all of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors import safe_open

import quantkit
from quantkit.core.errors import RefusedError
from quantkit.model.chain import require_own_weights
from quantkit.model.open import open_model
from quantkit.pipeline.blockloop import quantize_blocks
from quantkit.pipeline.groups import SolverConfig
from quantkit.pipeline.prepare import prepare
from tests.conftest import SHAPE, byte_tokenizer
from tests.runs.test_resume import content, seen, stop

FIRST, AGAIN = "model.layers.1.shared_transf", "model.layers.3.shared_transf"
LINEAR = "self_attn.q_proj"


@pytest.fixture
def zamba(tmp_path: Path) -> Path:
    """Two blocks with one attention and one MLP between them."""
    sizes = {"attention_head_dim": 64, "mamba_d_state": 16, "mamba_dt_rank": 16}
    types = ["mamba", "hybrid"] * 2
    shape = {k: v for k, v in SHAPE.items() if k not in ("head_dim", "tie_word_embeddings")}
    config = transformers.ZambaConfig(
        **shape | sizes | {"num_hidden_layers": 4, "num_key_value_heads": 4},
        layers_block_type=types,
    )
    torch.manual_seed(0)
    transformers.ZambaForCausalLM(config).save_pretrained(tmp_path / "model")
    byte_tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def recipe(method: str = "gptq", **settings: Any) -> Any:
    return quantkit.build_recipe(
        method, samples=4, sequence_length=64, settings=["allow_partial=true"], **settings
    )


@pytest.mark.parametrize("method", ["gptq", "awq", "smoothquant"])
def test_a_shared_linear_is_stored_once_and_stands_in_both_blocks(
    zamba: Path, tmp_path: Path, method: str
) -> None:
    result = quantkit.quantize(str(zamba), tmp_path / "out", recipe=recipe(method), evaluate=False)
    names = [str(module["name"]) for module in result.modules]
    assert f"{FIRST}.{LINEAR}" in names
    assert not [name for name in names if name.startswith(AGAIN)]
    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as file:
        assert not [name for name in file.keys() if name.startswith(AGAIN)]  # noqa: SIM118
    artifact, source = open_model(tmp_path / "out"), open_model(zamba)
    first, again, before = (
        model.parameter(f"{path}.{LINEAR}.weight")
        for model, path in ((artifact, FIRST), (artifact, AGAIN), (source, AGAIN))
    )
    assert torch.equal(first, again)
    assert 0 < (again - before).norm() < 0.2 * before.norm()
    ids = torch.arange(64)[None] + 2
    p, q = source.hidden_states(ids).float(), artifact.hidden_states(ids).float()
    assert (p - q).norm() < 0.3 * p.norm()
    assert any("several blocks" in remark for remark in result.remarks)
    assert None not in result.engines.values()


def test_later_blocks_compute_with_the_quantized_weight(zamba: Path) -> None:
    prepared = prepare(open_model(zamba), recipe("rtn", bits=3, format="compressed-tensors"))
    model, structure = prepared.model, prepared.structure
    solver = SolverConfig(prepared.method, prepared.options, prepared.plan.schemes)
    used: list[torch.Tensor] = []
    linear = model.skeleton.blocks[3].get_submodule(f"shared_transf.{LINEAR}")
    handle = linear.register_forward_hook(lambda m, _, __: used.append(m.weight.clone()))
    try:
        states = list(quantize_blocks(model, structure, solver, torch.arange(64)[None] + 2))
    finally:
        handle.remove()
    solved = states[1].solved[f"{FIRST}.{LINEAR}"].qtensor.dequantize()
    assert torch.equal(used[0], solved)
    assert f"{AGAIN}.{LINEAR}" not in states[3].solved


def test_nothing_that_blocks_share_is_rescaled(zamba: Path) -> None:
    structure = prepare(open_model(zamba), recipe("awq")).structure
    assert [group for kind in structure.kinds for group in kind.groups]
    for kind in structure.kinds:
        for pair in kind.pairs:
            assert not [n for n in (pair.producer, *pair.consumers) if n.startswith("shared")]


def test_what_the_recipe_leaves_out_stays_dense_in_both_blocks(zamba: Path, tmp_path: Path) -> None:
    given = quantkit.build_recipe(
        "rtn",
        samples=0,
        format="compressed-tensors",
        settings=["allow_partial=true", "overrides=[{match: '*.shared_transf.*', skip: true}]"],
    )
    quantkit.quantize(str(zamba), tmp_path / "out", recipe=given, evaluate=False)
    artifact = open_model(tmp_path / "out")
    assert artifact.scheme(f"{FIRST}.{LINEAR}") is None
    assert artifact.scheme(f"{AGAIN}.{LINEAR}") is None
    said = artifact.checkpoint.config["quantization_config"]
    assert f"{AGAIN}.{LINEAR}" in str(said), "engines go by the names of modules"


def test_weights_that_are_shared_within_a_block_are_refused(
    tiny_checkpoint: Callable[..., Path],
) -> None:
    skeleton = open_model(tiny_checkpoint("llama")).skeleton
    path = f"{skeleton.block_name(0)}.mlp"
    with pytest.raises(RefusedError, match="the same weight"):
        require_own_weights(skeleton, {f"{path}.up_proj": f"{path}.gate_proj"})


@pytest.mark.parametrize("done", [1, 2, 3])
@pytest.mark.parametrize("method", ["gptq", "nf4-double"])
def test_a_stopped_run_goes_on_with_what_blocks_share(
    zamba: Path, tmp_path: Path, method: str, done: int
) -> None:
    wanted = recipe(method)
    quantkit.quantize(str(zamba), tmp_path / "whole", recipe=wanted, evaluate=False)
    stop(zamba, tmp_path / "out", wanted, done + 1, evaluate=False)
    told: list[str] = []
    quantkit.resume(tmp_path / "out", report=seen(told))
    assert f"continue: {done} of 4 blocks are done" in told
    assert content(tmp_path / "out") == content(tmp_path / "whole")
