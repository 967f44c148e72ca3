from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quantkit.eval.report.load import load_study
from quantkit.eval.report.page_data import page_data
from quantkit.eval.report.recommendation import choose, one_line
from quantkit.eval.report.study import Study, Target
from quantkit.eval.report.targets import default_target, offer

GIB = 1024**3


@pytest.fixture
def study(tmp_path: Path, generated: Any) -> Study:
    return load_study([generated.write_sweep(tmp_path, count=9)])


def at(limit: float | None, context: int = 8192, max_kl: float | None = None) -> Target:
    limit_bytes = None if limit is None else int(limit * GIB)
    return Target("memory", limit_bytes, context, sequences=2, max_kl=max_kl)


def test_the_best_that_fits_is_taken_and_its_neighbours_are_named(study: Study) -> None:
    choice = choose(study, at(12))
    assert choice.pick is not None
    assert choice.pick.label == "FP8 W8A8"
    assert choice.verdict.text == (
        "fits in 11.9\u00a0GB and keeps the top token on 98.2\u00a0% of positions; "
        "no task loss can be shown."
    )
    assert [other.name for other in choice.others] == ["Smaller: GPTQ W4 g128"]
    choice = choose(study, at(10))
    assert choice.pick is not None
    assert choice.pick.label == "GPTQ W4 g128"
    assert choice.others[-1].name == "Better: FP8 W8A8"
    assert choice.others[-1].text.endswith("over the limit.")


def test_the_original_is_kept_where_it_fits(study: Study) -> None:
    choice = choose(study, at(24))
    assert choice.pick is study.reference
    assert choice.verdict.name == "Keep the original."


def test_what_does_not_fit_is_told_with_the_context_that_would(study: Study) -> None:
    choice = choose(study, at(8, context=65536))
    assert choice.pick is None
    assert choice.verdict.name == "No build fits."
    assert "GPTQ W4 g128, needs 24.9" in choice.verdict.text
    room = int(choice.verdict.text.split("at most ")[1].split()[0])
    smallest = next(b for b in study.builds if b.label == "GPTQ W4 g128")
    assert study.fits(smallest, at(8, context=room))
    assert not study.fits(smallest, at(8, context=room + 1))


def test_a_limit_of_quality_holds_for_the_upper_end_of_the_interval(study: Study) -> None:
    gptq = next(b for b in study.builds if b.label == "GPTQ W4 g128")
    assert gptq.kl is not None
    assert gptq.kl.mean is not None
    assert gptq.kl.ci95 is not None
    between = (gptq.kl.mean + gptq.kl.ci95[1]) / 2
    assert choose(study, at(10, max_kl=gptq.kl.ci95[1])).pick is gptq
    assert choose(study, at(10, max_kl=between)).pick is not gptq
    choice = choose(study, at(10, max_kl=1e-4))
    assert choice.verdict.name == "No build meets the limits."


def test_among_builds_that_the_text_cannot_tell_apart_the_smallest_is_taken(
    tmp_path: Path, generated: Any
) -> None:
    one = generated.eval_result(5, "big", bits=5.0, mean=0.02)
    kl = one.kl.model_copy(update={"mean": one.kl.mean * 1.0001})
    subject = one.artifact.model_copy(update={"name": "small", "bytes": one.artifact.bytes // 2})
    sums = [k * (1.3 if i % 2 else 0.7) for i, k in enumerate(one.documents.sum_kl_nats)]
    documents = one.documents.model_copy(update={"sum_kl_nats": sums})
    memory = one.memory.model_copy(update={"parts_bytes": {}})
    other = one.model_copy(
        update={"kl": kl, "artifact": subject, "documents": documents, "memory": memory}
    )
    folders = [
        generated.write_eval(tmp_path / name, each) for name, each in (("a", one), ("b", other))
    ]
    pick = choose(load_study(folders), Target("disk")).pick
    assert pick is not None
    assert pick.label == "small"


def test_a_build_that_misses_a_gate_is_not_recommended(study: Study) -> None:
    assert choose(study, at(7)).pick is None  # only 3-bit builds fit, and they miss a gate
    assert choose(study, at(7)).verdict.name == "No build fits."


def test_each_recipe_has_one_line_that_says_gates_and_figures(study: Study) -> None:
    lines = [one_line(build, study) for build in study.builds]
    assert lines[0].startswith("Passes 2 gates. KL 0.00")
    assert lines[0].endswith("49\u00a0% smaller.")
    assert any(line.startswith("Misses kl.mean <= 0.05, kl.p99 <= 1.") for line in lines)
    assert lines[-1].startswith("failed: engine vllm refuses")
    undecided = study.builds[3].result
    assert undecided is not None
    gate = undecided.gates[0].model_copy(update={"status": "undecided"})
    result = undecided.model_copy(update={"gates": [gate]})
    assert one_line(replace(study.builds[3], result=result), study).startswith("Undecided: kl.mean")


def test_what_is_within_the_noise_is_called_so(study: Study) -> None:
    result = study.builds[0].result
    assert result is not None
    assert result.kl is not None
    near = result.kl.model_copy(update={"mean": 0.0011})
    build = replace(study.builds[0], result=result.model_copy(update={"kl": near}))
    assert "not distinguishable from the original" in one_line(build, study)


def test_the_page_opens_with_the_largest_usual_size_that_the_original_does_not_fit(
    study: Study,
) -> None:
    target = default_target(study)
    assert (target.axis, target.context_tokens, target.sequences) == ("memory", 2048, 1)
    assert target.limit_bytes == 16 * GIB
    assert study.reference is not None
    assert not study.fits(study.reference, target)


def test_without_measured_memory_the_size_on_disk_decides(tmp_path: Path, generated: Any) -> None:
    study = load_study([generated.write_sweep(tmp_path, count=9, parts=())])
    target = default_target(study)
    assert target.axis == "disk"
    assert choose(study, target).pick is not None


def test_the_page_is_given_the_decision_under_every_choice_it_offers(study: Study) -> None:
    target = default_target(study)
    data, offered = page_data(study, target), offer(study, target)
    labels = [build.label for build in study.everything]
    for axis in ("memory", "disk"):
        targets = list(offered.targets(axis))
        assert len(data["decisions"][axis]) == len(targets)
        for place, each in list(enumerate(targets))[::7]:
            rule, build, smaller, better = data["outcomes"][data["decisions"][axis][place]]
            choice = choose(study, each)
            assert (choice.pick.label if choice.pick else None) == (
                labels[build] if rule in ("pick", "original") else None
            )
            assert len(choice.others) == sum(found is not None for found in (smaller, better))
    rules = {outcome[0] for outcome in data["outcomes"]}
    assert {"original", "none_fits", "pick"} <= rules


def test_every_sentence_is_filled_in(study: Study) -> None:
    for each in offer(study, default_target(study)).targets("disk"):
        choice = choose(study, each)
        assert "{" not in "".join(f"{s.name}{s.text}" for s in (choice.verdict, *choice.others))


def test_a_build_called_original_is_not_taken_for_the_original(
    tmp_path: Path, generated: Any
) -> None:
    study = load_study([generated.write_sweep(tmp_path, count=4, rename={0: "original"})])
    assert len({build.key for build in study.everything}) == len(study.everything)
