"""Mixed bits against every uniform recipe, at budgets between and beside the uniform sizes.

    python benchmarks/fit.py MODEL FOLDER --budgets 4.7MB,5.2MB --text heldout.jsonl

Sensitivities are measured once, and each budget then takes the way of `quantkit fit`.  The judge is
a text that took no part in the choice; differences are paired over its documents.
"""

import argparse
import json
import logging
from dataclasses import replace
from pathlib import Path

from quantkit import build_recipe, evaluate, quantize
from quantkit.checkpoint.sizes import parse_size
from quantkit.checkpoint.source import resolve
from quantkit.core.recipe import CalibrationSpec
from quantkit.core.scheme import Scheme
from quantkit.pipeline.opening import open_folder
from quantkit.results.paired import paired_difference
from quantkit.results.schema import EvalResult
from quantkit.runs.fit.choose import Wanted, measure, pose, settle
from quantkit.runs.fit.problem import spec_of
from quantkit.runs.fit.schemes import BITS, GRIDS, schemes_of

HEAD = "| budget | bytes | shipped | KL expected | KL | best uniform | its KL | less | 95 % |"


def judged(folder: Path, model: str, arguments: argparse.Namespace) -> EvalResult:
    """The artifact's result on the judge's text, from the file it was kept in if it is there."""
    kept = folder.with_suffix(".eval.json")
    if not kept.exists():
        text, windows = arguments.text, arguments.windows
        found = evaluate(str(folder), reference=model, text=text, windows=windows)
        kept.write_text(json.dumps(found.to_dict()))
    return EvalResult.model_validate_json(kept.read_text())


def uniform_builds(
    wanted: Wanted, names: dict[str, Scheme], arguments: argparse.Namespace
) -> dict[str, EvalResult]:
    """Every uniform recipe, quantized and judged."""
    found = {}
    for name, scheme in names.items():
        folder = wanted.output / name.replace(" ", "-")
        if not folder.exists():
            recipe = build_recipe("gptq-compressed")
            recipe = replace(recipe, scheme=spec_of(scheme), calibration=wanted.calibration)
            quantize(arguments.model, folder, recipe=recipe, evaluate=False)
        found[name] = judged(folder, arguments.model, arguments)
    return found


def row(budget: int, mixed: EvalResult, uniforms: dict[str, EvalResult]) -> str:
    """A budget's build beside the uniform one of least KL that fits."""
    fit_ = mixed.fit
    fitting = {n: u for n, u in uniforms.items() if (u.artifact.bytes or budget + 1) <= budget}
    name = min(fitting, key=lambda n: fitting[n].kl.mean)
    best = fitting[name]
    difference = paired_difference(mixed, best, "kl")
    low, high = difference.ci95
    point = fit_.mixed if fit_.shipped == "mixed" else fit_.uniform
    less = 100 * (1 - mixed.kl.mean / best.kl.mean)
    cells = [
        f"{budget:,}", f"{mixed.artifact.bytes:,}", fit_.shipped, f"{point.kl:.3g}",
        f"{mixed.kl.mean:.3g} +- {mixed.kl.standard_error:.1g}", name, f"{best.kl.mean:.3g}",
        f"{less:.0f} %", f"{low:+.2g} to {high:+.2g}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Makes what is missing in the folder, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--budgets", required=True)
    parser.add_argument("--text")
    parser.add_argument("--windows", type=int)
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--bits", default=",".join(map(str, BITS)))
    parser.add_argument("--grid", default=",".join(GRIDS))
    arguments = parser.parse_args()
    logging.disable(logging.INFO)
    arguments.folder.mkdir(exist_ok=True)
    budgets = [parse_size(size) for size in arguments.budgets.split(",")]
    wanted = Wanted(
        original=open_folder(resolve(arguments.model)),
        output=arguments.folder,
        budget=budgets[0],
        engine="vllm",
        schemes=schemes_of(
            [int(width) for width in arguments.bits.split(",")], grids=arguments.grid.split(",")
        ),
        calibration=CalibrationSpec(samples=arguments.samples),
    )
    problem, calibration = measure(wanted, pose(wanted))
    names = {chosen[0].label(): chosen[0] for chosen in problem.uniforms()}
    uniforms = uniform_builds(wanted, names, arguments)
    for name, found in uniforms.items():
        print(name, f"{found.artifact.bytes:,}", found.kl.mean, found.kl.standard_error)
    print(HEAD, "|---" * 9 + "|", sep="\n")
    for budget in budgets:
        folder = arguments.folder / f"fit-{budget}"
        if not folder.exists():
            settle(replace(wanted, budget=budget, output=folder), problem, calibration)
        found = judged(folder, arguments.model, arguments)
        own = json.loads((folder / "eval.json").read_text())["fit"]
        print(row(budget, EvalResult.model_validate(found.to_dict() | {"fit": own}), uniforms))


if __name__ == "__main__":
    main()
