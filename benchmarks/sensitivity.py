"""Which measure of a group's sensitivity leads to the best choice of bits.

    python benchmarks/sensitivity.py MODEL

The KL of every option of every group alone is measured once, and its sum is what a choice is judged
by.  Each measure then chooses for itself, at budgets halfway between uniform sizes.
"""

import argparse
from collections.abc import Callable
from itertools import pairwise

from quantkit.checkpoint.source import resolve
from quantkit.core.recipe import CalibrationSpec
from quantkit.pipeline.calibrate import calibrate
from quantkit.pipeline.prepare import parts_of
from quantkit.pipeline.sensitivity import Effect, measure_effects
from quantkit.runs.fit.allocate import Option, allocate
from quantkit.runs.fit.choose import start_with
from quantkit.runs.fit.problem import FileSizes, Problem, probe_of, state_problem
from quantkit.runs.fit.schemes import schemes_of

Cost = Callable[[Problem, int, list[Effect]], list[float]]


def every_option(_problem: Problem, _k: int, effects: list[Effect]) -> list[float]:
    """KL as measured."""
    return [effect.kl or 0.0 for effect in effects]


def one_option(_problem: Problem, _k: int, effects: list[Effect]) -> list[float]:
    """KL of the option that does most, the others in proportion: what `fit` does from 4 bits up."""
    most = max(range(len(effects)), key=lambda j: effects[j].loss)
    known = effects[most]
    return [(known.kl or 0.0) * each.loss / known.loss if known.loss else 0.0 for each in effects]


def loss_alone(_problem: Problem, _k: int, effects: list[Effect]) -> list[float]:
    """The relative squared error of the group's output: nothing is run on from the group."""
    return [effect.loss for effect in effects]


def loss_and_size(problem: Problem, k: int, effects: list[Effect]) -> list[float]:
    """The same in proportion to the number of the group's weights."""
    size = sum(f.out_features * f.in_features for f in problem.choices[k].linears)
    return [effect.loss * size for effect in effects]


MEASURES: tuple[Cost, ...] = (every_option, one_option, loss_alone, loss_and_size)


def main() -> None:
    """Prints the KL of each measure's choices."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    arguments = parser.parse_args()
    schemes = schemes_of((4, 8), grids=("int",))
    prepared = start_with(resolve(arguments.model), "vllm", schemes, CalibrationSpec())
    problem = state_problem(prepared, schemes, FileSizes(prepared))
    calibration = calibrate(prepared.model, CalibrationSpec())
    method, _, _, options = parts_of(prepared.plan.recipe)
    effects = measure_effects(
        prepared.model, problem.choices, method, options, probe_of(calibration),
        lambda choice: range(len(choice.schemes) - 1),
    )  # fmt: skip

    def kl(indices: list[int]) -> float:
        return sum(row[j].kl or 0.0 for row, j in zip(effects, indices, strict=True))

    def priced(cost: Cost) -> list[list[Option]]:
        return [
            [Option(o.bytes, c) for o, c in zip(row, cost(problem, k, effects[k]), strict=True)]
            for k, row in enumerate(problem.items)
        ]

    uniform = sorted(
        (problem.bytes(chosen), kl([c.schemes.index(chosen[0]) for c in problem.choices]))
        for chosen in problem.uniforms()
    )
    print("| bytes | best uniform |", " | ".join(cost.__name__ for cost in MEASURES), "|")
    print("|---" * (2 + len(MEASURES)) + "|")
    for (low, best), (high, _) in pairwise(uniform):
        budget = (low + high) // 2
        found = [kl(allocate(priced(cost), budget - problem.fixed).choice) for cost in MEASURES]
        print(f"| {budget:,} | {best:.3g} |", " | ".join(f"{value:.3g}" for value in found), "|")


if __name__ == "__main__":
    main()
