"""Experts as linears compute what transformers' fused ones do, whatever way they are stored."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

import quantkit
from quantkit.core.recipe import Override
from quantkit.model.experts import expert_count, experts_in
from quantkit.model.open import open_model
from quantkit.model.opened import OpenModel
from quantkit.model.skeleton import is_linear
from quantkit.model.structure import trace_structure
from tests.conftest import SHAPE, WIDE

IDS = torch.randint(2, 250, (2, 24), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("family", WIDE)
def test_logits_equal_those_of_transformers(
    tiny_checkpoint: Callable[..., Path], family: str
) -> None:
    """On two windows: what a block is given must not be taken from another window."""
    folder = tiny_checkpoint(family)
    model = open_model(folder)
    network = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        expected = torch.cat([network(row[None], use_cache=False).logits for row in IDS])
    head = model.head()
    found = torch.stack([head(rows) for rows in model.hidden_states(IDS)])
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("family", WIDE)
@pytest.mark.parametrize("method", ["rtn", "gptq"])
def test_nearly_every_linear_is_quantized_and_the_output_stays_near(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path, family: str, method: str
) -> None:
    folder = str(tiny_checkpoint(family))
    recipe = quantkit.build_recipe(
        method, bits=8, format="compressed-tensors", group_size=32, samples=4, sequence_length=64
    )
    plan = quantkit.dry_run(folder, recipe=recipe)
    assert plan.share > 0.97
    result = quantkit.quantize(folder, tmp_path / "out", recipe=recipe, evaluate=False)
    assert result.bytes == sum(path.stat().st_size for path in result.output.glob("*.safetensors"))
    assert plan.files is not None
    assert plan.files.bytes == result.bytes
    whole = open_model(Path(folder)).hidden_states(IDS)
    change = (open_model(result.output).hidden_states(IDS) - whole).norm(dim=-1)
    # random weights send some tokens to other experts; most of them must go where they went
    assert 0 < (change / whole.norm(dim=-1)).median() < 0.1


def test_experts_keep_the_names_that_they_are_stored_under(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    recipe = quantkit.build_recipe("rtn", samples=0)
    names = {}
    for family in ("experts_apart", "experts_renamed", "experts_fused"):
        out = tmp_path / family
        quantkit.quantize(str(tiny_checkpoint(family)), out, recipe=recipe, evaluate=False)
        names[family] = set(load_file(out / "model.safetensors"))
    assert "model.layers.0.mlp.experts.7.gate_proj.qweight" in names["experts_apart"]
    assert "model.layers.1.block_sparse_moe.experts.3.w2.scales" in names["experts_renamed"]
    apart = {name for name in names["experts_fused"] if ".experts." in name}
    assert "model.layers.0.mlp.experts.3.down_proj.bias" in apart
    assert not {name for name in apart if "gate_up_proj" in name}


@pytest.mark.parametrize("family", ["experts_apart", "experts_renamed", "experts_fused"])
@pytest.mark.parametrize("match", ["*.experts.1.*", "*.0.*.experts.2.down_proj"])
def test_some_experts_of_a_block_may_stay_dense(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path, family: str, match: str
) -> None:
    source = tiny_checkpoint(family, dtype="bfloat16")
    base = quantkit.build_recipe("rtn", bits=8, format="compressed-tensors", samples=0)
    recipe = replace(base, overrides=(Override(match, skip=True),), allow_partial=True)
    quantkit.quantize(str(source), tmp_path / "out", recipe=recipe, evaluate=False)
    before, after = open_model(source), open_model(tmp_path / "out")
    left = [name for name, _ in experts_linears(after) if after.scheme(name) is None]
    assert left
    assert all(recipe.overrides[0].covers(name) for name in left)
    for name in left:
        assert torch.equal(after.parameter(f"{name}.weight"), before.parameter(f"{name}.weight"))
    whole = before.hidden_states(IDS)
    change = (after.hidden_states(IDS) - whole).norm(dim=-1) / whole.norm(dim=-1)
    assert 0 < change.median() < 0.1


def experts_linears(model: OpenModel) -> Iterator[tuple[str, torch.nn.Module]]:
    return (
        (name, module)
        for name, module in model.skeleton.model.named_modules()
        if ".experts." in name and is_linear(module)
    )


def test_routers_stay_as_they_are(tiny_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    folder = tiny_checkpoint("shared_expert")
    recipe = quantkit.build_recipe("rtn", samples=0)
    result = quantkit.quantize(str(folder), tmp_path / "out", recipe=recipe, evaluate=False)
    before = load_file(folder / "model.safetensors")
    after = load_file(result.output / "model.safetensors")
    routers = [name for name in before if name.endswith(("mlp.gate.weight", "expert_gate.weight"))]
    assert len(routers) == 4
    assert all(torch.equal(before[name], after[name]) for name in routers)


def test_tokens_of_experts_are_in_manifest_result_and_page(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    folder = str(tiny_checkpoint("experts_apart"))
    recipe = quantkit.build_recipe("gptq", samples=4, sequence_length=64)
    result = quantkit.quantize(folder, tmp_path / "out", recipe=recipe)
    manifest = json.loads((tmp_path / "out" / "quantkit.json").read_text())
    tokens = manifest["expert_tokens"]
    assert list(tokens) == [f"model.layers.{i}.mlp.experts" for i in (0, 1)]
    assert [sum(layer) for layer in tokens.values()] == [2 * 4 * 64] * 2
    counts = [count for layer in tokens.values() for count in layer]
    assert result.evaluation is not None
    found = result.evaluation.modules.experts
    assert found is not None
    assert (found.least, found.most, found.count) == (min(counts), max(counts), 16)
    assert found.few == 16, "256 tokens are less than four for each of 64 inputs"
    page = (tmp_path / "out" / "report.html").read_text()
    assert f"{min(counts)} to {max(counts)}, median {found.median:g}; few for 16 of 16" in page


def test_one_expert_is_traced_for_all(tiny_checkpoint: Callable[..., Path]) -> None:
    skeleton = open_model(tiny_checkpoint("experts_apart")).skeleton
    ((path, stack),) = experts_in(skeleton.blocks[0])
    found = trace_structure(skeleton).of(0)
    groups = [group for group in found.groups if group.stage]
    assert expert_count(stack) == 8
    assert [group.stage for group in groups] == [f"{path}.routed_inputs"] * 8 + [
        f"{path}.routed_inner"
    ] * 8
    assert groups[7].names == (f"{path}.7.up_proj", f"{path}.7.gate_proj")
    assert {pair.consumers for pair in found.pairs} >= {(f"{path}.7.down_proj",)}


def test_experts_of_an_unknown_form_are_refused_or_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Experts that look like DBRX's and compute something else."""

    def halved(self: Any, x: Any, gate: Any, up: Any, down: Any) -> Any:
        return (self.activation_fn(x @ gate.T) * (x @ up.T) / 2) @ down

    modeling = transformers.models.dbrx.modeling_dbrx
    monkeypatch.setattr(modeling.DbrxExpertGLU, "forward", halved)
    sizes = {"d_model": 128, "n_heads": 4, "n_layers": 2, "max_seq_len": 512}
    config = transformers.DbrxConfig(**SHAPE | sizes)
    config.attn_config.update({"rope_theta": 10000.0, "clip_qkv": 8.0})
    config.ffn_config.ffn_hidden_size = 128
    folder = tmp_path / "model"
    transformers.DbrxForCausalLM(config).save_pretrained(folder)
    settings = ["format=compressed-tensors"]
    recipe = quantkit.build_recipe("rtn", samples=0, settings=settings)
    with pytest.raises(quantkit.QuantkitError, match="of the linear weights") as caught:
        quantkit.dry_run(str(folder), recipe=recipe)
    assert caught.value.exit_code == 4
    assert "experts" in str(caught.value.why)
    settings.append("allow_partial=true")
    allowed = quantkit.build_recipe("rtn", samples=0, settings=settings)
    assert 0 < quantkit.dry_run(str(folder), recipe=allowed).share < 0.9


def test_gptqmodel_is_not_promised_for_experts_under_other_names(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    recipe = quantkit.build_recipe("rtn", samples=0)
    for family, loads in (("experts_apart", True), ("experts_renamed", False)):
        folder = str(tiny_checkpoint(family))
        result = quantkit.quantize(folder, tmp_path / family, recipe=recipe, evaluate=False)
        assert (result.engines["gptqmodel"] is None) == loads
