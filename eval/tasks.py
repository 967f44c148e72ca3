"""Question sets from EleutherAI's lm-eval, answered by models that quantkit decodes."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from quantkit.calibration.tokens import load_tokenizer
from quantkit.core.errors import InputError
from quantkit.core.progress import Progress
from quantkit.core.session import Session
from quantkit.model.open import open_model
from quantkit.model.opened import load_dense
from quantkit.results.answers import Answers, compare_answers
from quantkit.results.schema import TaskResult

BATCH = 8
"""Batch size in questions; fixed, because bf16 answers depend on it."""


def run_tasks(
    artifact: Path,
    reference: Path,
    tasks: Sequence[str],
    session: Session = Session(),
    *,
    limit: int | None = None,
) -> list[TaskResult]:
    """Run each task on `reference` and `artifact`, and compare the answers one by one.

    A task is an lm-eval name or a .yaml file. One whole model with decoded weights is in memory at
    a time. `limit`: only the first questions.

    Raises:
        InputError: lm-eval is not installed or does not know a task, or a task has no metric with
            right and wrong answers.
    """
    sides: list[list[Answers]] = []
    for number, folder in enumerate((reference, artifact)):
        model = _wrap(folder, session)
        side: list[Answers] = []
        for task in tasks:
            done = number * len(tasks) + len(side)
            session.report(Progress("tasks", done, 2 * len(tasks), f"{folder.name}: {task}"))
            side.append(_answers(model, task, limit))
        sides.append(side)
    session.report(Progress("tasks", 2 * len(tasks), 2 * len(tasks)))
    return [compare_answers(ours, theirs) for theirs, ours in zip(*sides, strict=True)]


def _wrap(folder: Path, session: Session) -> Any:
    """lm-eval's model around the decoded one."""
    try:
        from lm_eval.models.huggingface import HFLM
    except ImportError as error:
        raise InputError(
            "tasks need lm-eval", why=str(error), hint="pip install 'quantkit-deploy[tasks]'"
        ) from error
    tokenizer = load_tokenizer(folder, session)
    network = load_dense(open_model(folder, session))
    return HFLM(pretrained=network.eval(), tokenizer=tokenizer, batch_size=BATCH)


def _answers(model: Any, task: str, limit: int | None) -> Answers:
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    own = task.endswith((".yaml", ".yml"))
    if own and not Path(task).is_file():
        raise InputError(f"task file `{task}` does not exist", hint="lm_eval ls tasks")
    manager = TaskManager(include_defaults=not own)
    # Without the default random errors: ours are of pairs.
    options = {"limit": limit, "bootstrap_iters": 0, "task_manager": manager}
    try:
        found = simple_evaluate(model, tasks=[task], **options)
    except (KeyError, ValueError) as error:
        why = str(error.args[0]) if error.args else None
        raise InputError(
            f"lm-eval cannot run task `{task}`", why=why, hint="lm_eval ls tasks"
        ) from error
    samples = found["samples"]
    name = next(iter(samples)) if len(samples) == 1 else Path(task).stem
    return collect(name, samples)


def collect(task: str, samples: Mapping[str, Sequence[Mapping[str, Any]]]) -> Answers:
    """The answers in lm-eval's records of a task, or of a group's tasks one after the other.

    Of several filters the first counts, and of several metrics the first whose values are all 0
    or 1.
    """
    prompts = hashlib.sha256()
    right: list[bool] = []
    metric = ""
    for records in samples.values():
        kept = sorted(_first_filter(records), key=lambda record: record["doc_id"])
        metric = _metric(task, kept)
        for record in kept:
            prompts.update(f"{record['doc_hash']} {record['prompt_hash']}\n".encode())
            right.append(bool(record[metric]))
    if not right:
        raise InputError(f"task `{task}` contains no questions", hint="a task with a test set")
    return Answers(task, metric, prompts.hexdigest(), tuple(right))


def _first_filter(records: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    return (record for record in records if record["filter"] == records[0]["filter"])


def _metric(task: str, records: Sequence[Mapping[str, Any]]) -> str:
    names = records[0]["metrics"] if records else []
    for name in names:
        if all(isinstance(r[name], int | float) and r[name] in (0, 1) for r in records):
            return str(name)
    raise InputError(
        f"task `{task}` has no metric that is right or wrong",
        why=f"it has {', '.join(names) or 'none'}",
        hint="a task with accuracy or exact match",
    )
