"""What the statistics of `quantkit eval` hold: coverage, false alarms, floor, stored references.

    python evaluation.py [--trials 3000] [--windows 64]

Prints one JSON document. The simulations need no model; the rest quantizes the embedded model in
four ways and compares the builds on two halves of its held-out text.
"""

import argparse
import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import quantkit
from quantkit.calibration.tokens import load_tokenizer
from quantkit.eval.reference_store import read_store, write_store
from quantkit.eval.scoring import Reference
from quantkit.eval.side_by_side import evaluate_models, read_reference
from quantkit.eval.text import EvaluationText, TextChoice
from quantkit.eval.windows import read_text
from quantkit.model.embedded_model import FOLDER, HELDOUT
from quantkit.model.open import open_model
from quantkit.results.bootstrap import mean_interval
from quantkit.results.estimate import stratified_mean
from quantkit.results.paired import distinguishable, paired_difference
from quantkit.results.schema import EvalResult

RECIPES = {"w8a16": {}, "gptq": {"samples": 16, "sequence_length": 512}, "rtn": {}, "nf4": {}}


def coverage(documents: int, trials: int) -> dict[str, float]:
    """Share of 95 % intervals of a skewed mean that hold the truth, by bootstrap and by formula."""
    generator = np.random.default_rng(7)
    domains = [f"{i % 4}" for i in range(documents)]
    counts = np.full(documents, 64.0)
    truth = math.exp((0.5**2 + 1) / 2)
    hits = {"bootstrap": 0, "student": 0}
    for _ in range(trials):
        level = generator.normal(scale=0.5, size=(documents, 1))
        sums = np.exp(level + generator.normal(size=(documents, 64))).sum(axis=1)
        intervals = {
            "bootstrap": mean_interval(sums, counts, domains),
            "student": stratified_mean(sums, counts, domains).interval,
        }
        for name, (low, high) in intervals.items():
            hits[name] += low < truth < high
    return {name: count / trials for name, count in hits.items()}


def half(text: EvaluationText, first: int) -> EvaluationText:
    """Every second document of a text, under a token hash of its own."""
    chosen = list(range(first, len(text.documents), 2))
    return replace(
        text,
        tokens=text.tokens[chosen],
        spans=tuple(text.spans[i] for i in chosen),
        clusters=tuple(range(len(chosen))),
        documents=tuple(text.documents[i] for i in chosen),
        protocol={**text.protocol, "tokens_sha256": f"half {first}", "windows": len(chosen)},
    )


def differences(halves: list[dict[str, EvalResult]]) -> list[dict[str, Any]]:
    """Each pair of builds on both halves: what is called real, and whether its sign repeats."""
    found = []
    for one, other in itertools.combinations(RECIPES, 2):
        first, second = (paired_difference(h[one], h[other], "kl") for h in halves)
        found.append(
            {
                "pair": f"{one} - {other}",
                "difference": first.difference,
                "floor": first.floor,
                "real": first.real,
                "above_floor": abs(first.difference) > first.floor,
                "sign_repeats": first.difference * second.difference > 0,
            }
        )
    return found


def stores(
    folder: Path, reference: Reference, text: EvaluationText, build: Path
) -> dict[str, dict[str, Any]]:
    """The same build against the reference itself and against both stored forms of it."""
    original = open_model(FOLDER)
    found = {}
    for form in ("hidden", "topk"):
        kept = write_store(folder / form, reference, original, text, form)
        kl = evaluate_models(open_model(build), text, read_store(kept, text)).kl
        wanted = {"mean", "lower_bound", "upper_bound", "sampling_standard_error"}
        size = sum(path.stat().st_size for path in kept.rglob("*") if path.is_file())
        found[form] = {
            **kl.model_dump(include=wanted),
            "bytes_per_token": size / text.tokens.numel(),
        }
    return found


def main() -> None:
    """Prints the figures as one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=3000)
    parser.add_argument("--windows", type=int, default=64)
    args = parser.parse_args()
    text = read_text(TextChoice(str(HELDOUT), windows=args.windows), load_tokenizer(FOLDER))
    halves = [half(text, first) for first in (0, 1)]
    references = [read_reference(open_model(FOLDER), part) for part in halves]
    with TemporaryDirectory() as temporary:
        base = Path(temporary)
        for name, options in RECIPES.items():
            recipe = quantkit.build_recipe(name, **options)
            quantkit.quantize(str(FOLDER), base / name, recipe=recipe, evaluate=False)
        results = [
            {n: evaluate_models(open_model(base / n), part, reference) for n in RECIPES}
            for part, reference in zip(halves, references, strict=True)
        ]
        document = {
            "coverage": {n: coverage(n, args.trials) for n in (16, 64, 512)},
            "kl": {n: r.kl.model_dump(include={"mean", "standard_error", "floor_mean"})
                   for n, r in results[0].items()},
            "distinguishable": {n: distinguishable(r) for n, r in results[0].items()},
            "differences": differences(results),
            "stores": stores(base, references[0], halves[0], base / "rtn"),
        }  # fmt: skip
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()
