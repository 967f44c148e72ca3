import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quantkit.api import evaluation
from quantkit.cli.console import Console
from quantkit.cli.render.gates import conclude, gate_lines, task_lines
from quantkit.model.embedded_model import FOLDER, HELDOUT
from quantkit.results.schema import GateOutcome

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def artifact(embedded_w4: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model in 4 bits; a copy, as a test writes into its manifest."""
    return shutil.copytree(embedded_w4, tmp_path_factory.mktemp("gates") / "artifact")


@pytest.fixture(scope="module")
def measured(artifact: Path) -> dict[str, Any]:
    """What `eval` says of it."""
    found = evaluation.evaluate(
        str(artifact), reference=str(FOLDER), text=str(HELDOUT), windows=16, sequence_length=128
    )
    return found.to_dict()


@pytest.fixture
def evaluate(quantkit: Call, artifact: Path) -> Call:
    """`quantkit eval` of the artifact with further options."""
    flags = f"--reference {FOLDER} --text {HELDOUT} --windows 16 --sequence-length 128 --quiet"
    return lambda *more: quantkit("eval", str(artifact), *flags.split(), *more)


def test_a_missed_gate_exits_3_and_everything_else_stands(evaluate: Call, tmp_path: Path) -> None:
    saved = tmp_path / "eval.json"
    gates = ("--gate", "kl.mean <= 0.0001", "--gate", "artifact.bytes < 5MB", "-o", str(saved))
    code, out, _ = evaluate(*gates)
    assert code == 3
    found = json.loads(saved.read_text())
    assert [gate["status"] for gate in found["gates"]] == ["failed", "passed"]
    assert out.splitlines()[-4] == "gates  1 passed, 1 failed"
    assert out.splitlines()[-2].startswith("kl.mean <= 0.0001 ")


def test_an_unknown_figure_exits_2_before_any_work(quantkit: Call) -> None:
    code, _, err = quantkit("eval", "nowhere", "--gate", "kl.men < 1")
    assert code == 2
    assert "the nearest are kl.mean, " in err


def test_an_equal_rerun_passes_its_baseline(
    evaluate: Call, measured: dict[str, Any], tmp_path: Path
) -> None:
    old = tmp_path / "old.json"
    old.write_text(json.dumps(measured))
    code, out, _ = evaluate("--baseline", str(old), "--json")
    assert code == 0
    gates = {gate["expression"]: gate["status"] for gate in json.loads(out)["gates"]}
    assert gates == {
        "kl.mean <= baseline": "passed",
        "perplexity.value <= baseline": "passed",
        "top1_agreement >= baseline": "passed",
        "artifact.bytes <= baseline": "passed",
        "memory.planned_bytes <= baseline": "passed",
    }


@pytest.mark.long
def test_the_recipe_that_made_an_artifact_is_held_to_its_gates(
    evaluate: Call, artifact: Path
) -> None:
    path, sums = artifact / "quantkit.json", artifact / "SHA256SUMS"
    before, stated = path.read_text(), sums.read_text()
    sums.unlink()  # they are those of the manifest as it was
    manifest = json.loads(before)
    manifest["recipe"] |= {"gates": ["kl.p99 <= 9", "tasks.recovery > 0.9"]}
    path.write_text(json.dumps(manifest))
    lenient = evaluate()
    manifest["recipe"] |= {"gate_policy": {"undecided": "fail"}}
    path.write_text(json.dumps(manifest))
    strict = evaluate()
    path.write_text(before)
    sums.write_text(stated)
    assert (lenient[0], strict[0]) == (0, 3)
    assert lenient[1] == strict[1]
    assert "gates  1 passed, 1 undecided" in lenient[1]
    assert "tasks.recovery > 0.9: not measured" in lenient[1]


def three_percent_less_kl(old: dict[str, Any]) -> None:
    old["kl"]["mean"] /= 1.03
    old["documents"]["sum_kl_nats"] = [s / 1.03 for s in old["documents"]["sum_kl_nats"]]


def one_byte_less(old: dict[str, Any]) -> None:
    old["artifact"]["bytes"] -= 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("plant", "figure"), [(three_percent_less_kl, "kl.mean"), (one_byte_less, "artifact.bytes")]
)
def test_a_planted_regression_exits_3_and_names_the_figure(
    plant: Callable[[dict[str, Any]], None],
    figure: str,
    evaluate: Call,
    measured: dict[str, Any],
    tmp_path: Path,
) -> None:
    old = json.loads(json.dumps(measured))
    plant(old)
    path = tmp_path / "old.json"
    path.write_text(json.dumps(old))
    code, out, err = evaluate("--baseline", str(path), "--json")
    assert code == 3
    failed = [gate for gate in json.loads(out)["gates"] if gate["status"] == "failed"]
    assert [gate["expression"] for gate in failed] == [f"{figure} <= baseline"]
    assert "worse than" in failed[0]["why"]
    assert err == ""  # --quiet


def test_a_baseline_that_is_none_exits_2(quantkit: Call, tmp_path: Path) -> None:
    assert quantkit("eval", "nowhere", "--baseline", str(tmp_path / "no.json"))[0] == 2


def test_tasks_need_the_original_and_not_a_store(quantkit: Call, artifact: Path) -> None:
    code, _, err = quantkit("eval", str(artifact), "--tasks", "arc_easy")
    assert code == 2
    assert "--reference MODEL" in err


def test_the_table_fits_what_it_says_and_reasons_come_below() -> None:
    outcomes = [
        GateOutcome(
            expression="kl.mean <= 0.03",
            value=0.0241,
            interval=(0.022, 0.026),
            limit=0.03,
            status="passed",
        ),
        GateOutcome(expression="tasks.recovery >= 99%", status="undecided", why="not measured"),
        GateOutcome(
            expression='engines.vllm == "passed"', value="no", limit="passed", status="failed"
        ),
    ]
    assert "\n".join(map(str, gate_lines([o.model_dump() for o in outcomes]))).splitlines() == [
        "",
        "gates  1 passed, 1 failed, 1 undecided",
        "gate                      measured  95 % interval   limit   outcome",
        "kl.mean <= 0.03           0.0241    0.022 to 0.026  0.03    passed",
        "tasks.recovery >= 99%     -         -               -       undecided",
        'engines.vllm == "passed"  no        -               passed  failed',
        "tasks.recovery >= 99%: not measured",
    ]
    assert gate_lines([]) == []


def test_only_what_failed_ends_in_3(capsys: pytest.CaptureFixture[str]) -> None:
    undecided = GateOutcome(expression="a", status="undecided")
    assert conclude(Console(), [undecided]) == 0
    assert conclude(Console(), [undecided], "fail") == 3
    assert capsys.readouterr().err == ""
    assert conclude(Console(as_json=True), [undecided], "fail") == 3
    assert "undecided" in capsys.readouterr().err


def test_a_task_is_a_row() -> None:
    task = {
        "name": "arc",
        "accuracy": 0.5,
        "reference_accuracy": 0.52,
        "recovery": 0.96,
        "recovery_ci95": (0.92, 1.0),
        "right_to_wrong": 9,
        "wrong_to_right": 5,
        "mcnemar_p": 0.42,
        "detectable_fraction": 0.031,
    }
    lines = str(task_lines({"tasks": [task]})[1])
    assert "52.0 %    50.0 %  96.0 +- 4.0 %  9 lost, 5 won  0.42  3.1 points" in lines
    assert task_lines({"tasks": []}) == []
