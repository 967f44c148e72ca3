"""Experts in the block loop: which tokens each is calibrated on, and that the forward stays."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import quantkit
from quantkit.core.errors import IntegrityError
from quantkit.core.method import Solved
from quantkit.model.open import open_model
from quantkit.model.opened import OpenModel, batch_size
from quantkit.pipeline.blockloop import quantize_blocks
from quantkit.pipeline.groups import SolverConfig
from quantkit.pipeline.prepare import prepare
from quantkit.stats.inputs import InputStats

IDS = torch.randint(2, 250, (6, 40), generator=torch.Generator().manual_seed(0))
CHOSEN = 2
"""Experts of a token in these models."""


def run(
    model: OpenModel, policy: str, ids: torch.Tensor = IDS, method: str = "rtn", *settings: str
) -> tuple[dict[str, list[InputStats | None]], dict[str, Solved], dict[str, tuple[int, ...]]]:
    """What each group's statistics were, by its first linear's kind; all results; tokens sent.

    Groups that the method did not get (without tokens) are left out.
    """
    recipe = quantkit.build_recipe(
        method, group_size=32, settings=[f"calibration.experts={policy}", *settings]
    )
    prepared = prepare(model, recipe)
    seen: list[InputStats | None] = []

    def spied(weights: Any, stats: Any, *rest: Any) -> list[Solved]:
        seen.append(stats)
        return prepared.method.quantize(weights, stats, *rest)

    method_seen = replace(prepared.method, quantize=spied)
    solver = SolverConfig(
        method_seen, prepared.options, prepared.plan.schemes, recipe.calibration.experts
    )
    stats: dict[str, list[InputStats | None]] = {}
    solved: dict[str, Solved] = {}
    tokens: dict[str, tuple[int, ...]] = {}
    for state in quantize_blocks(model, prepared.structure, solver, ids):
        groups = [
            group
            for group in state.structure.groups
            if state.scheme(solver, group) is not None
            and not any("to nearest" in n for n in state.solved[state.full(group.names[0])].notes)
        ]
        for group, found in zip(groups, seen, strict=True):
            kind = group.names[0].rpartition(".")[2] if group.stage else "other"
            stats.setdefault(kind, []).append(found)
        seen.clear()
        solved |= state.solved
        tokens |= state.expert_tokens
    return stats, solved, tokens


@pytest.mark.parametrize("family", ["experts_apart", "experts_renamed", "experts_fused"])
def test_all_tokens_change_what_experts_learn_from_and_not_what_is_computed(
    tiny_checkpoint: Callable[..., Path], family: str
) -> None:
    """Plain rounding looks at no statistics, so that everything after it must be bit-equal."""
    model = open_model(tiny_checkpoint(family))
    routed, first, sent = run(model, "routed", IDS, "rtn", "options.search=false")
    every, second, sent_too = run(model, "all", IDS, "rtn", "options.search=false")
    assert sent == sent_too
    assert all(sum(counts) == CHOSEN * IDS.numel() for counts in sent.values())
    for name, solved in first.items():
        assert torch.equal(solved.qtensor.codes, second[name].qtensor.codes), name
    for one, other in zip(routed["other"], every["other"], strict=True):
        assert one is not None
        assert other is not None
        assert torch.equal(one.hessian, other.hessian)  # of attention: what the blocks gave
    for kind, found in every.items():
        assert {stats.tokens for stats in found if stats} == {IDS.numel()}, kind
    firsts = [stats for stats in every["up_proj"] if stats]
    layers = [firsts[: len(firsts) // 2], firsts[len(firsts) // 2 :]]
    for layer in layers:
        assert all(torch.equal(stats.hessian, layer[0].hessian) for stats in layer)
    down = [stats for stats in every["down_proj"] if stats]
    assert not torch.equal(down[0].hessian, down[1].hessian)
    by_router = [s.tokens if s else 0 for s in routed["down_proj"]]
    assert by_router == [count for counts in sent.values() for count in counts]


def test_experts_of_few_tokens_are_noted_and_counted(tiny_checkpoint: Callable[..., Path]) -> None:
    """Two tokens for eight experts: most get none, and none gets four a channel."""
    model = open_model(tiny_checkpoint("experts_apart"))
    stats, solved, sent = run(model, "routed", IDS[:1, :2], "gptq")
    counts = [count for layer in sent.values() for count in layer]
    assert 0 in counts
    assert sum(counts) == 2 * 2 * CHOSEN
    for found, count in zip(stats["up_proj"], counts, strict=True):
        assert found is not None, "the layer's tokens stand in"
        assert found.tokens == (count or 2)
        assert torch.linalg.eigvalsh(found.hessian)[0] > 0
    assert [s.tokens for s in stats["down_proj"] if s] == [count for count in counts if count]
    for name, result in solved.items():
        notes = [note for note in result.notes if "calibration tokens reached" in note]
        assert len(notes) == (".experts." in name), name
    assert any("rounded to nearest" in note for each in solved.values() for note in each.notes)


@pytest.mark.parametrize("method", ["awq", "smoothquant", "gptq"])
def test_later_blocks_see_what_the_artifact_computes(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path, method: str
) -> None:
    """Scales folded into an expert's first matrices must divide its inner input once, not twice."""
    folder = tmp_path / "uneven"
    shutil.copytree(tiny_checkpoint("experts_apart"), folder)
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith(".up_proj.weight"):
            tensor[::4] *= 32  # channels that are worth a scale of their own
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    recipe = quantkit.build_recipe(
        method, format="compressed-tensors", samples=4, sequence_length=64
    )
    prepared = prepare(open_model(folder), recipe)
    model = prepared.model
    from quantkit.calibration.text import read_documents
    from quantkit.calibration.tokens import load_tokenizer, tokenize
    from quantkit.pipeline import blockloop

    ids = tokenize(read_documents("default"), load_tokenizer(folder), 4, 64, "default").input_ids
    outputs: list[torch.Tensor] = []
    run_block = blockloop._run

    def kept(groups: Any, batches: list[torch.Tensor], *others: Any) -> None:
        run_block(groups, batches, *others)
        outputs[:] = batches

    solver = SolverConfig(prepared.method, prepared.options, prepared.plan.schemes)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(blockloop, "_run", kept)
        list(quantize_blocks(model, prepared.structure, solver, ids))
    quantkit.quantize(str(folder), tmp_path / "out", recipe=recipe, evaluate=False)
    artifact = open_model(tmp_path / "out")
    batches, calls = artifact.enter(ids)
    for index in range(len(artifact.skeleton.blocks)):
        block = artifact.load_block(index)
        with torch.no_grad():
            for i, (hidden, call) in enumerate(zip(batches, calls, strict=True)):
                batches[i] = call[index].run(block, hidden)
    before, after = torch.cat(outputs).float(), torch.cat(list(batches)).float()
    if method == "smoothquant":
        assert (before - after).norm() < 0.1 * after.norm()  # activations are rounded in one alone
    else:
        torch.testing.assert_close(before, after, rtol=1e-3, atol=1e-3)


def test_a_batch_that_takes_another_way_is_noticed(
    tiny_checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it computes would be lost, and groups would be solved without it."""
    model = open_model(tiny_checkpoint("llama"))
    recipe = quantkit.build_recipe("rtn", group_size=32)
    prepared = prepare(model, recipe)
    solver = SolverConfig(prepared.method, prepared.options, prepared.plan.schemes)
    most = batch_size(40)
    ids = torch.randint(2, 250, (most + 1, 40), generator=torch.Generator().manual_seed(0))
    mlp: Any = model.skeleton.blocks[1].mlp
    whole = mlp.forward
    monkeypatch.setattr(mlp, "forward", lambda x: whole(x) if len(x) == most else x)
    with pytest.raises(IntegrityError, match=r"layers\.1\.mlp\.gate_proj"):
        list(quantize_blocks(model, prepared.structure, solver, ids))
