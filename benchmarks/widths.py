"""All widths and grids against 4 and 8 bits alone, at equal budgets.

    python benchmarks/widths.py MODEL FOLDER --budgets 4.6MB,5.2MB --text heldout.jsonl

Sensitivities are measured once. Each budget's mixed builds, and the best uniform one by expected
KL, are quantized and judged on a text that took no part in the choice.
"""

import argparse
import json
import logging
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from quantkit import evaluate, quantize
from quantkit.checkpoint.sizes import parse_size
from quantkit.checkpoint.source import resolve
from quantkit.core.recipe import CalibrationSpec
from quantkit.core.scheme import Scheme
from quantkit.pipeline.opening import open_folder
from quantkit.runs.fit.choose import Wanted, candidates_of, measure, pose
from quantkit.runs.fit.problem import Problem
from quantkit.runs.fit.schemes import GROUP_SIZES, schemes_of


def limited(problem: Problem, keep: Callable[[Scheme], bool]) -> Problem:
    """The problem with fewer options, at the same figures."""
    kept = [[j for j, s in enumerate(c.schemes) if s is None or keep(s)] for c in problem.choices]
    choices = zip(problem.choices, kept, strict=True)
    items = zip(problem.items, kept, strict=True)
    return replace(
        problem,
        choices=tuple(replace(c, schemes=tuple(c.schemes[j] for j in js)) for c, js in choices),
        items=tuple(tuple(row[j] for j in js) for row, js in items),
    )


def main() -> None:
    """Makes what is missing in the folder, and prints a line for each build."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--budgets", required=True)
    parser.add_argument("--text")
    parser.add_argument("--windows", type=int)
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--group-size", default="32,64,128,channel")
    arguments = parser.parse_args()
    logging.disable(logging.INFO)
    folder = arguments.folder
    folder.mkdir(exist_ok=True)
    budgets = [parse_size(size) for size in arguments.budgets.split(",")]
    sizes = [s for s in GROUP_SIZES if str(s or "channel") in arguments.group_size.split(",")]
    wanted = Wanted(
        original=open_folder(resolve(arguments.model)),
        output=folder,
        budget=budgets[0],
        engine="vllm",
        schemes=schemes_of(group_sizes=sizes),
        calibration=CalibrationSpec(samples=arguments.samples),
    )
    problem, costs = pose(wanted), folder / "items.pkl"
    if not costs.exists():
        costs.write_bytes(pickle.dumps(measure(wanted, problem)[0].items))
    problem = replace(problem, items=pickle.loads(costs.read_bytes()))  # noqa: S301 - our own file
    narrow = limited(problem, lambda s: s.grid == "int" and s.bits in (4, 8))
    for budget in budgets:
        for name, offered in (("wide", problem), ("narrow", narrow)):
            for candidate in candidates_of(offered, budget)[0]:
                if (name, candidate.kind) == ("narrow", "uniform"):
                    continue
                label = candidate.point.name or f"{budget}-{name}"
                out = folder / label.replace(" ", "-")
                kept = out.with_suffix(".eval.json")
                if not kept.exists():
                    recipe = offered.prepared_for(candidate.chosen, "fit").plan.recipe
                    quantize(arguments.model, out, recipe=recipe, evaluate=False)
                    text, windows = arguments.text, arguments.windows
                    judged = evaluate(
                        str(out), reference=arguments.model, text=text, windows=windows
                    )
                    kept.write_text(json.dumps(judged.to_dict()))
                kl = json.loads(kept.read_text())["kl"]
                print(
                    f"| {budget:,} | {label} | {candidate.point.bytes:,} | "
                    f"{candidate.point.kl:.3g} | {kl['mean']:.3g} ± {kl['standard_error']:.1g} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
