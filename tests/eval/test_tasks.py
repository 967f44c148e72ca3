import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from quantkit import quantize
from quantkit.core.errors import InputError
from quantkit.eval.tasks import collect
from quantkit.model.embedded_model import FOLDER, HELDOUT
from quantkit.recipes.loader import build_recipe
from quantkit.results.schema import EvalResult

TASK = """\
task: sums
dataset_path: json
dataset_kwargs:
  data_files: {test: %s}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: answer
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
metadata: {version: 1}
"""


def record(number: int, *, right: float, strict: bool = True, **more: Any) -> dict[str, Any]:
    """One of lm-eval's records."""
    return {
        "doc_id": number,
        "doc_hash": f"d{number}",
        "prompt_hash": f"p{number}",
        "filter": "strict" if strict else "flexible",
        "metrics": ["f1", "acc"],
        "f1": 0.3,
        "acc": right,
    } | more


def test_the_first_filter_and_the_first_metric_of_right_and_wrong_count() -> None:
    records = [record(1, right=0.0), record(0, right=1.0), record(0, right=0.0, strict=False)]
    found = collect("t", {"t": records})
    assert (found.metric, found.right) == ("acc", (True, False))


def test_a_group_is_its_tasks_one_after_the_other() -> None:
    whole = collect("g", {"a": [record(0, right=1)], "b": [record(0, right=0, doc_hash="e")]})
    assert (whole.task, whole.right) == ("g", (True, False))
    assert whole.questions != collect("g", {"a": [record(0, right=1)] * 2}).questions


def test_what_has_no_right_and_wrong_is_refused() -> None:
    with pytest.raises(InputError, match="no metric that is right or wrong"):
        collect("t", {"t": [record(0, right=0.5)]})
    with pytest.raises(InputError, match="contains no questions"):
        collect("t", {})


@pytest.fixture
def sums(tmp_path: Path) -> Path:
    """A task file of our own: which of three numbers a sum is."""
    rows = []
    for i in range(48):
        a, b = i % 7 + 1, i % 5 + 2
        choices = [f"{a} + {b} = {c}" for c in (a + b, a + b + 1, a * b + 3)]
        rows.append({"question": "", "choices": choices, "answer": 0})
    data = tmp_path / "sums.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = tmp_path / "sums.yaml"
    task.write_text(TASK % data)
    return task


@pytest.mark.long
def test_a_task_of_ours_is_answered_by_both_models_offline(sums: Path, tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    artifact = tmp_path / "artifact"
    recipe = build_recipe("rtn", bits=3, format="gptq", samples=1, sequence_length=64)
    quantize(str(FOLDER), artifact, recipe=recipe, evaluate=False)
    command = f"eval {artifact} --reference {FOLDER} --text {HELDOUT} --windows 2 --json"
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    gates = ["--gate", "tasks.worst.recovery >= 0.1", "--gate", "tasks.sums.accuracy > 99%"]
    done = subprocess.run(
        [sys.executable, "-m", "quantkit", *command.split(), "--tasks", str(sums), *gates],
        env=os.environ | offline,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    found = EvalResult.model_validate_json(done.stdout)
    (task,) = found.tasks
    assert (task.name, task.metric, task.questions) == ("sums", "acc", 48)
    assert task.accuracy == task.answers.count("1") / 48
    assert task.reference_accuracy == task.reference_answers.count("1") / 48
    assert task.reference_accuracy > 0.5  # chance is a third
    changed = [a != b for a, b in zip(task.answers, task.reference_answers, strict=True)]
    assert sum(changed) == task.right_to_wrong + task.wrong_to_right
    assert [gate.status for gate in found.gates] == ["passed", "failed"]
