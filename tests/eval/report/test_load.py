import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from quantkit.core.errors import InputError, IntegrityError, RefusedError
from quantkit.eval.report.load import load_study


def test_a_sweep_keeps_its_failures_and_sets_the_original_apart(
    tmp_path: Path, generated: Any
) -> None:
    study = load_study([generated.write_sweep(tmp_path, count=5)])
    assert study.title == "Generated-8B"
    assert study.reference is not None
    assert study.reference.label == "BF16"
    assert [build.status for build in study.builds] == ["done"] * 4 + ["failed"]
    assert study.builds[-1].why.startswith("engine vllm refuses")
    assert len(study.differences) == 6  # every pair of the four


def test_folders_of_one_model_are_put_together_and_names_that_repeat_are_numbered(
    tmp_path: Path, generated: Any
) -> None:
    one = generated.write_eval(tmp_path / "one", generated.eval_result(1, "A"))
    two = generated.write_eval(tmp_path / "two", generated.eval_result(2, "A"))
    study = load_study([one, two])
    assert [build.label for build in study.builds] == ["A", "A (2)"]
    assert study.reference is not None  # as the results describe it
    assert study.reference.disk_bytes == 2 * generated.PARAMETERS
    assert study.reference.measured is not None
    assert study.reference.measured.perplexity.value == 7.9


def test_an_artifact_is_read_from_its_manifest(tmp_path: Path, generated: Any) -> None:
    measured = json.loads(generated.eval_result(1).model_dump_json(by_alias=True))
    del measured["artifact"]
    manifest = {
        "recipe": {"name": "gptq", "method": "gptq"},
        "source": {"id": "org/Example-8B"},
        "format": "gptq",
        "bytes": 1234,
        "bits_per_weight": 4.4,
        "evaluation": measured,
    }
    (tmp_path / "quantkit.json").write_text(json.dumps(manifest))
    build = load_study([tmp_path]).builds[0]
    assert (build.label, build.family, build.disk_bytes) == (tmp_path.name, "gptq", 1234)
    manifest["evaluation"] = None
    (tmp_path / "quantkit.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match="was not evaluated"):
        load_study([tmp_path])


def test_two_protocols_or_two_originals_are_never_put_beside_each_other(
    tmp_path: Path, generated: Any
) -> None:
    result = generated.eval_result(1)
    one = generated.write_eval(tmp_path / "one", result)
    protocol = result.protocol.model_copy(update={"tokens_sha256": "other"})
    other = generated.write_eval(tmp_path / "p", result.model_copy(update={"protocol": protocol}))
    with pytest.raises(RefusedError, match="different protocols") as caught:
        load_study([one, other])
    assert caught.value.exit_code == 4
    reference = result.reference.model_copy(update={"sha256": "cd" * 32})
    other = generated.write_eval(tmp_path / "r", result.model_copy(update={"reference": reference}))
    with pytest.raises(RefusedError, match="different originals"):
        load_study([one, other])


def test_a_result_that_changed_after_the_sweep_is_refused(tmp_path: Path, generated: Any) -> None:
    folder = generated.write_sweep(tmp_path, count=3)
    path = folder / "runs" / "r0" / "eval.json"
    path.write_text(path.read_text() + " ")
    with pytest.raises(IntegrityError, match=r"r0.eval\.json. changed since the sweep"):
        load_study([folder])


@pytest.mark.parametrize("where", ["../outside.json", "/etc/hostname"])
def test_a_sweep_that_points_out_of_its_folder_is_refused(
    tmp_path: Path, generated: Any, where: str
) -> None:
    folder = tmp_path / "sweep"
    folder.mkdir()
    generated.write_sweep(folder, count=3)
    sweep = json.loads((folder / "sweep.json").read_text())
    sweep["runs"][1]["eval"] = where
    (folder / "sweep.json").write_text(json.dumps(sweep))
    with pytest.raises(InputError, match="points out of the folder"):
        load_study([folder])


def test_fields_of_a_later_version_and_numbers_that_are_none_are_taken(
    tmp_path: Path, generated: Any
) -> None:
    text = generated.eval_result(1).model_dump_json(by_alias=True)
    data = json.loads(text) | {"later": {"figure": 1}}
    data["kl"]["max"] = float("inf")
    data["kl"]["p99"] = float("nan")
    (tmp_path / "eval.json").write_text(json.dumps(data).replace("Infinity", "1e999"))
    kl = load_study([tmp_path]).builds[0].kl
    assert kl is not None
    assert (kl.max, kl.p99) == (None, None)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "is not JSON"),
        ("[]", "no valid evaluation result"),
        ("{}", "artifact: Field required"),
    ],
)
def test_what_is_no_result_is_told_with_its_fault(tmp_path: Path, content: str, told: str) -> None:
    (tmp_path / "eval.json").write_text(content)
    with pytest.raises(InputError, match=told):
        load_study([tmp_path])


def test_a_folder_without_results_says_how_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no results") as caught:
        load_study([tmp_path])
    assert "quantkit eval" in str(caught.value.hint)
    with pytest.raises(InputError, match="no folder `"):
        load_study([tmp_path / "absent"])


def test_an_invalid_result_stays_in_the_study_and_out_of_every_comparison(
    tmp_path: Path, generated: Any
) -> None:
    folder = generated.write_sweep(tmp_path, count=4)
    path = folder / "runs" / "r1" / "eval.json"
    data = json.loads(path.read_text()) | {"status": "invalid", "notes": ["NaN in window 3"]}
    path.write_text(json.dumps(data))
    sweep = json.loads((folder / "sweep.json").read_text())
    sweep["runs"][2]["eval_sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (folder / "sweep.json").write_text(json.dumps(sweep))
    study = load_study([folder])
    assert study.builds[1].kl is None
    assert {pair for pair in study.differences if 1 in pair} == set()


def test_a_result_may_be_named_by_its_file_and_a_folder_twice(
    tmp_path: Path, generated: Any
) -> None:
    folder = generated.write_sweep(tmp_path, count=3)
    alone = load_study([folder / "runs" / "r1" / "eval.json"])
    assert alone.builds[0].result == load_study([folder / "runs" / "r1"]).builds[0].result
    twice = load_study([folder, folder / "runs" / ".."])
    assert [b.key for b in twice.builds] == [b.key for b in load_study([folder]).builds]
