"""What evaluations are planned to take, where their states wait, and what is refused."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import quantkit
from quantkit.checkpoint.spill import Spill
from quantkit.core.errors import InputError, ResourceError
from quantkit.core.plan import Plan
from quantkit.core.resources import PAUSED, SPILLED, Holding, Memory
from quantkit.model.open import open_model
from quantkit.pipeline.start import start
from quantkit.planning.run.evaluation import Network, Reading, evaluation_memory, triage_memory
from quantkit.recipes.loader import build_recipe
from quantkit.runs.ceiling import Ceiling
from quantkit.runs.forecast import plan_prepared, require_memory, what_fits
from quantkit.runs.reading import network_of, plan_reading, waiting_room, with_evaluation
from tests.conftest import TinyCheckpoint

GIB = 1 << 30
LLAMA_8B = Network(
    block=218_112_000,
    largest=58_720_256,
    inner=14_336,
    hidden=4096,
    embedding=525_336_576,
    head=525_336_576,
    vocabulary=128_256,
    itemsize=2,
)
BOTH = (replace(LLAMA_8B, decoded=True), LLAMA_8B)


@pytest.mark.parametrize("family", ["llama", "llama_tied", "gpt2", "experts_fused"])
def test_the_sizes_are_those_of_the_tensors(tiny_checkpoint: TinyCheckpoint, family: str) -> None:
    model = open_model(tiny_checkpoint(family, dtype="float16"))
    found = network_of(model)
    blocks = [model.load_block(index) for index in range(len(model.skeleton.blocks))]
    assert found.block == max(sum(p.numel() for p in b.parameters()) for b in blocks)
    assert found.largest == max(p.numel() for b in blocks for p in b.parameters())
    vocabulary, width = model.text_config.vocab_size, model.text_config.hidden_size
    assert found.head == vocabulary * width
    assert found.embedding >= vocabulary * width
    assert (found.itemsize, found.cast) == (4, 2)  # a CPU computes fp16 in fp32


def test_experts_a_token_may_differ_by_block(tiny_checkpoint: TinyCheckpoint) -> None:
    """HunYuan's configs state a list; the largest counts."""
    model = open_model(tiny_checkpoint("experts_fused"))
    found = []
    for active in (2, [1, 2]):
        vars(model.text_config)["num_experts_per_tok"] = active  # this class would refuse a list
        found.append(network_of(model))
    assert found[0] == found[1]


def test_in_a_file_neither_windows_nor_variants_take_memory() -> None:
    few, many = Reading(16, 2048), Reading(256, 2048)
    triaged = partial(_triage_memory, 70)
    for memory in (evaluation_memory, triaged):
        growth = {
            way: memory(BOTH, many, way).peak.bytes - memory(BOTH, few, way).peak.bytes
            for way in (PAUSED, SPILLED)
        }
        states = 2 * LLAMA_8B.states(240 * 2048)
        assert growth[PAUSED] >= states
        assert growth[SPILLED] < 0.02 * states


def _triage_memory(
    variants: int, models: tuple[Network, ...], reading: Reading, way: Holding
) -> Memory:
    return triage_memory(models, reading, variants, way)


@pytest.mark.parametrize(("limit", "way"), [(12, PAUSED), (5, SPILLED), (1, SPILLED)])
def test_the_first_way_that_fits_is_taken(tmp_path: Path, limit: int, way: object) -> None:
    ceiling = Ceiling("cpu", None, limit * GIB)
    plan = plan_reading(
        lambda holding: evaluation_memory(BOTH, Reading(256, 2048), holding), ceiling, Plan(), GIB
    )
    assert plan.evaluation is not None
    assert plan.evaluation.holding == way
    assert ceiling.holds(plan) == (limit > 1)
    room = waiting_room(plan.evaluation, tmp_path)
    spill = getattr(room, "__self__", None)
    assert isinstance(spill, Spill) == (way is SPILLED)


def test_a_run_whose_evaluation_alone_does_not_fit_is_told_what_does(
    tiny_checkpoint: TinyCheckpoint,
) -> None:
    prepared = start(open_model(tiny_checkpoint("llama")), build_recipe("rtn", samples=0))
    run = plan_prepared(prepared, (0, 0), GIB)
    ceiling = Ceiling("cpu", None, 1)
    plan = with_evaluation(run, ceiling, prepared, (16, 512))
    assert plan.evaluation is not None
    limit = 2 * ceiling.whole(run)
    assert limit < ceiling.whole(plan)
    ceiling = replace(ceiling, limit=limit)
    remedy = what_fits(plan, ceiling, prepared, (0, 0), GIB)
    with pytest.raises(ResourceError, match="--max-ram allows") as refused:
        require_memory(plan, ceiling, lambda: remedy)
    assert refused.value.exit_code == 5
    assert refused.value.why is not None
    assert "of the evaluation" in refused.value.why
    assert remedy.startswith("--no-eval or --max-ram ")


def test_eval_takes_a_limit_and_refuses_one_that_nothing_fits(
    tiny_checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In a file or not, the figures are the same; the file is where TMPDIR says."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    model = str(tiny_checkpoint("llama", dtype="bfloat16"))
    given: dict[str, Any] = {"reference": model, "windows": 2, "sequence_length": 64}
    with pytest.raises(ResourceError, match="--max-ram allows 50 MB") as refused:
        quantkit.evaluate(model, max_ram="50MB", device="cpu", **given)
    assert refused.value.exit_code == 5
    assert str(refused.value.hint).startswith("--max-ram ")
    found = quantkit.evaluate(model, max_ram="30GB", device="cpu", **given)
    assert found.tokens == 2 * 64
    for other in ({"tasks": ["arc_easy"]}, {"speed": True}):
        with pytest.raises(InputError, match="--max-ram does not go with"):
            quantkit.evaluate(model, max_ram="30GB", device="cpu", **given, **other)
    with pytest.raises(InputError, match="--max-vram"):
        quantkit.evaluate(model, max_vram="30GB", device="cpu", **given)
