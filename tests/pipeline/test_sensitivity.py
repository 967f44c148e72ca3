"""What one group alone does, against a model that is run whole with that group changed."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from transformers import AutoModelForCausalLM

from quantkit.checkpoint.spill import Spill
from quantkit.core import registry
from quantkit.core.method import Method
from quantkit.core.recipe import ExpertTokens
from quantkit.core.scheme import Scheme
from quantkit.model.embedded_model import FOLDER
from quantkit.model.open import open_model
from quantkit.pipeline.blockloop import quantize_blocks
from quantkit.pipeline.choices import Choice
from quantkit.pipeline.groups import SolverConfig
from quantkit.pipeline.prepare import Prepared
from quantkit.pipeline.sensitivity import STRIDE, Effect, Probe, measure_effects
from quantkit.stats.inputs import InputStats
from tests.methods.solving import quantized

pytestmark = pytest.mark.long

W3, W8 = Scheme("int", 3, None), Scheme("int", 8, None)


@pytest.fixture(scope="module")
def ids() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(3, 2000, (6, 96), generator=generator)


def choices_in(folder: Path) -> tuple[Prepared, list[Choice]]:
    from tests.pipeline.test_choices import found, prepared

    start = prepared(folder)
    return start, found(start, [W3, W8])


def effects(
    folder: Path, ids: torch.Tensor, method: str = "rtn"
) -> tuple[Prepared, list[Choice], list[list[Effect]]]:
    start, choices = choices_in(folder)
    part = registry.load("methods", method, "METHOD")
    probe = Probe(ids[2:], ids[:2])
    both = measure_effects(start.model, choices, part, part.options(), probe, lambda _: (0, 1))
    return start, choices, both


def test_effects_are_the_same_where_states_wait_in_a_file(
    tiny_checkpoint: Callable[..., Path], ids: torch.Tensor, tmp_path: Path
) -> None:
    folder = tiny_checkpoint("llama", dtype="bfloat16")
    start, choices, found = effects(folder, ids % 200)
    model = replace(start.model, room=Spill(tmp_path).batches)
    part, probe = registry.load("methods", "rtn", "METHOD"), Probe(ids[2:] % 200, ids[:2] % 200)
    again = measure_effects(model, choices, part, part.options(), probe, lambda _: (0, 1))
    assert again == found


def test_kl_is_that_of_the_model_with_the_group_alone_changed(ids: torch.Tensor) -> None:
    start, choices, found = effects(FOLDER, ids)
    reference = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
    with torch.no_grad():
        before = reference(ids[:2]).logits[:, STRIDE - 1 :: STRIDE].double().log_softmax(-1)
    for k in (0, 7, 23):
        choice = choices[k]
        changed = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
        for linear in choice.linears:
            weight = changed.get_submodule(linear.name).weight.data
            weight.copy_(rounded(choice, linear.name, ids[2:]))
        with torch.no_grad():
            after = changed(ids[:2]).logits[:, STRIDE - 1 :: STRIDE].double().log_softmax(-1)
        truth = float((before.exp() * (before - after)).sum(-1).mean())
        assert found[k][0].kl == pytest.approx(truth, rel=1e-3)
    assert start.model.dtype is torch.bfloat16


def rounded(choice: Choice, name: str, ids: torch.Tensor) -> torch.Tensor:
    """The weight at 3 bits, from the statistics of a plain forward of the whole model."""
    from quantkit.stats.hessian import InputCollector

    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
    collector = InputCollector(mixes_tokens=choice.groups[0].mixes_tokens)
    module = model.get_submodule(name)
    module.register_forward_pre_hook(lambda _, args: collector.add(args[0]))
    with torch.no_grad():
        model(ids)
    part = registry.load("methods", "rtn", "METHOD")
    weight = module.weight.data.clone()
    (solved,) = quantized(part, [weight], collector.finish(), W3, torch.bfloat16, part.options())
    result: torch.Tensor = solved.qtensor.dequantize()
    return result


def test_more_bits_do_less(ids: torch.Tensor) -> None:
    _, choices, found = effects(FOLDER, ids, "gptq")
    for choice, (low, high, dense) in zip(choices, found, strict=True):
        assert choice.schemes == (W3, W8, None)
        assert low.kl is not None
        assert high.kl is not None
        assert 0 < high.loss < low.loss / 100
        assert 0 < high.kl < low.kl / 100
        assert dense == Effect(0.0)


def test_the_model_is_left_as_it_was(
    tiny_checkpoint: Callable[..., Path], ids: torch.Tensor
) -> None:
    folder = tiny_checkpoint()
    start, _, _ = effects(folder, ids % 200)
    fresh = open_model(folder).hidden_states(ids[:1] % 200)
    assert torch.equal(start.model.hidden_states(ids[:1] % 200), fresh)
    assert all(p.is_meta for p in start.model.skeleton.model.parameters())


@pytest.mark.parametrize("policy", get_args(ExpertTokens))
@pytest.mark.parametrize("linear", ["gate_proj", "down_proj"])
def test_experts_are_solved_with_the_statistics_that_quantize_has(
    tiny_checkpoint: Callable[..., Path], linear: str, policy: ExpertTokens
) -> None:
    """With 12 tokens some experts have few, and some none: they learn from their layer's."""
    windows = torch.arange(3, 15)[None]
    start, choices = choices_in(tiny_checkpoint("experts_apart"))
    seen: list[dict[tuple[int, ...], list[InputStats | None]]] = []
    part: Method = registry.load("methods", "rtn", "METHOD")

    def noting(weights: list[torch.Tensor], stats: InputStats | None, *rest: Any) -> Any:
        seen[-1].setdefault(tuple(weights[0].shape), []).append(stats)
        return part.quantize(weights, stats, *rest)

    method = replace(part, quantize=noting, needs_inputs=True)
    first = next(c for c in choices if c.block == 0 and c.experts)
    groups = tuple(g for g in first.groups if any(n.endswith(linear) for n in g.names))
    names = {f"{start.model.skeleton.block_name(0)}.{n}" for g in groups for n in g.names}
    linears = tuple(f for f in first.linears if f.name in names)
    seen.append({})
    wide = replace(start.model, dtype=torch.float32)
    solver = SolverConfig(method, part.options(), dict.fromkeys(names, W3), policy)
    for _ in quantize_blocks(wide, start.structure, solver, windows):
        pass
    seen.append({})
    choice = replace(first, groups=groups, linears=linears, schemes=(W3,))
    probe = Probe(windows, windows, policy)
    measure_effects(start.model, [choice], method, part.options(), probe, lambda _: ())
    theirs, ours = seen
    assert theirs
    assert theirs.keys() == ours.keys()
    for shape, expected in theirs.items():
        assert len(expected) == len(ours[shape]) == first.experts
        for a, b in zip(expected, ours[shape], strict=True):
            assert (a is None) == (b is None)
            if a is not None and b is not None:
                assert torch.equal(a.hessian, b.hessian)
                assert torch.equal(a.sample, b.sample)
