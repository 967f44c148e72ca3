"""Answers of two models to the same questions: recovery, flips and significance of a loss."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from quantkit.core.errors import InputError
from quantkit.results.estimate import POWER_FACTOR
from quantkit.results.schema import Interval, TaskResult

LEVEL = 0.05
Z = 1.959964


@dataclass(frozen=True)
class Answers:
    """Which questions of a task a model answered correctly, in the task's order.

    `questions` is the SHA-256 of the prompts, `metric` the metric that decides.
    """

    task: str
    metric: str
    questions: str
    right: tuple[bool, ...]

    @property
    def accuracy(self) -> float:
        """Fraction of questions answered correctly."""
        return sum(self.right) / len(self.right)


@dataclass(frozen=True)
class Flips:
    """Numbers of questions that only one of two models answers correctly, out of `total`."""

    right_to_wrong: int
    wrong_to_right: int
    total: int

    @property
    def both(self) -> int:
        """Flips in either direction."""
        return self.right_to_wrong + self.wrong_to_right

    def standard_error(self) -> float:
        """Standard error of the difference of the two accuracies: sqrt(b + c - (b - c)^2 / n) / n.

        b and c are the flips, n the questions (Agresti, Categorical Data Analysis, 2002, 10.1).
        """
        net = self.right_to_wrong - self.wrong_to_right
        return math.sqrt(max(0.0, self.both - net**2 / self.total)) / self.total


def count_flips(before: Sequence[bool], after: Sequence[bool]) -> Flips:
    """Flips from `before` to `after`, answers to the same questions."""
    pairs = list(zip(before, after, strict=True))
    return Flips(pairs.count((True, False)), pairs.count((False, True)), len(pairs))


def mcnemar(flips: Flips) -> float:
    """Exact two-sided p of McNemar's test (Psychometrika 12, 1947): binomial, each flip at 1/2."""
    fewer = min(flips.right_to_wrong, flips.wrong_to_right)
    tail = sum(math.comb(flips.both, i) for i in range(fewer + 1))
    return min(1.0, float(2 * tail / (1 << flips.both)))


def compare_answers(model: Answers, reference: Answers) -> TaskResult:
    """Recovery = accuracy / reference accuracy, with its interval and test.

    Where no answer flips, the errors assume one flip: with none the error would be 0.

    Raises:
        InputError: the questions differ, or the reference answers none of them correctly.
    """
    if (model.questions, model.metric) != (reference.questions, reference.metric):
        raise InputError(
            f"the two models answered different questions in task `{model.task}`",
            why="prompt, order or metric differ, so the answers cannot be paired",
            hint="one version of lm-eval, and a task without random prompts",
        )
    if not any(reference.right):
        raise InputError(
            f"the original answers no question of task `{model.task}` correctly",
            why="recovery is a share of the original's correct answers",
            hint="an easier task, or one in the form of the model's training data",
        )
    flips = count_flips(reference.right, model.right)
    known = flips if flips.both else Flips(1, 0, flips.total)
    recovery = model.accuracy / reference.accuracy
    half = Z * known.standard_error() / reference.accuracy
    return TaskResult(
        name=model.task,
        metric=model.metric,
        questions=flips.total,
        questions_sha256=model.questions,
        accuracy=model.accuracy,
        reference_accuracy=reference.accuracy,
        right_to_wrong=flips.right_to_wrong,
        wrong_to_right=flips.wrong_to_right,
        mcnemar_p=mcnemar(flips),
        recovery=recovery,
        recovery_ci95=(recovery - half, recovery + half),
        detectable_fraction=POWER_FACTOR * math.sqrt(known.both) / flips.total,
        answers=_bits(model.right),
        reference_answers=_bits(reference.right),
    )


def losses(tasks: Sequence[TaskResult]) -> tuple[str, ...]:
    """Tasks on which the model is significantly worse; LEVEL is divided by their number."""
    return tuple(
        task.name
        for task in tasks
        if task.right_to_wrong > task.wrong_to_right and task.mcnemar_p < LEVEL / len(tasks)
    )


def accuracy_beside(new: TaskResult, old: TaskResult) -> Interval | None:
    """95 % interval of `new`'s accuracy with `old`'s exact; None without paired answers."""
    if not new.answers or (new.questions_sha256, new.metric) != (old.questions_sha256, old.metric):
        return None
    if len(new.answers) != len(old.answers):
        return None
    flips = count_flips([a == "1" for a in old.answers], [a == "1" for a in new.answers])
    half = Z * flips.standard_error()
    return new.accuracy - half, new.accuracy + half


def _bits(right: Sequence[bool]) -> str:
    return "".join("1" if one else "0" for one in right)
