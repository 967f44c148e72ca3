"""One table of every method, bit width and format on one model, each scored against the original.

python benchmarks/table.py MODEL --calibration valid.txt --text test.txt -o table.json

Each row is a run of the command line in a process of its own (its cost is measured there), scored
here against one reference. The other formats that hold the same codes are encoded and decoded
again: their bytes are given only if their weights are equal, bit for bit.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from quantkit.calibration.tokens import load_tokenizer
from quantkit.core import registry
from quantkit.core.format import Format
from quantkit.eval.scoring import Reference
from quantkit.eval.side_by_side import evaluate_models, read_reference
from quantkit.eval.text import EvaluationText, TextChoice
from quantkit.eval.windows import read_text
from quantkit.model.open import open_model
from quantkit.model.opened import OpenModel
from quantkit.model.skeleton import is_linear, linear_facts
from quantkit.pipeline.write import planned_tensors

SYMMETRIC = [
    (method, bits, group, "--symmetric")
    for method in ("rtn", "gptq", "awq")
    for bits in (4, 3, 8, 2)
    for group in ("64", "channel")
    if not (bits in (2, 8) and (method == "awq" or group == "channel"))
]
ASYMMETRIC = [(method, 4, "64", "--asymmetric") for method in ("rtn", "gptq", "awq")]
OWN = ("nf4", "nf4-double", "smoothquant")
ABLATION = {
    "all": (),
    "no sink term": ("sink=0.0",),
    "unsigned scales": ("signed=false",),
    "weighted scales, no trials": ("search=weighted",),
    "min-max scales": ("search=minmax",),
    "natural order": ("order=natural",),
    "scale-free damping": ("scale_free_damping=true",),
    "no better rows": ("keep_better_rows=false",),
    "none of them": (
        "sink=0.0",
        "signed=false",
        "search=minmax",
        "order=natural",
        "keep_better_rows=false",
    ),
}


def main() -> None:
    """Run, score, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--calibration", default="default")
    parser.add_argument("--text", default=None)
    parser.add_argument("--protocol", default="wikitext2-2048", help="windows of 512 all the same")
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument(
        "--ablation", action="store_true", help="gptq less one ingredient at a time"
    )
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()

    original = open_model(args.model)
    choice = TextChoice(args.text, args.protocol, 512, args.windows)
    text = read_text(choice, load_tokenizer(args.model))
    reference = read_reference(original, text)
    rows = []
    for name, flags in ablation() if args.ablation else runs():
        if args.only not in name:
            continue
        rows.append(measure(args, name, flags, text, reference))
        args.output.write_text(json.dumps(rows, indent=1))
        print(line(rows[-1]), flush=True)


def runs() -> list[tuple[str, list[str]]]:
    """Name and flags of every row."""
    found = []
    for method, bits, group, kind in SYMMETRIC + ASYMMETRIC:
        name = f"{method} W{bits} {'channel' if group == 'channel' else 'g' + group} {kind[2:6]}"
        flags = ["--method", method, "--bits", str(bits), "--group-size", group, kind]
        layout = "gptq-v2" if kind == "--asymmetric" else "gptq"
        found.append((name, [*flags, "--format", layout]))
    return found + [(name, ["--recipe", name]) for name in OWN]


def ablation() -> list[tuple[str, list[str]]]:
    """Name and flags of gptq at group 64 with each ingredient switched off in turn."""
    found = []
    for bits in ("4", "3"):
        for name, options in ABLATION.items():
            settings = [part for option in options for part in ("--set", f"options.{option}")]
            flags = ["--method", "gptq", "--bits", bits, "--group-size", "64", *settings]
            found.append((f"W{bits} {name}", flags))
    return found


def measure(
    args: argparse.Namespace,
    name: str,
    flags: list[str],
    text: EvaluationText,
    reference: Reference,
) -> dict[str, Any]:
    """One run and its scores."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        command = [sys.executable, "-m", "quantkit", "quantize", str(args.model), "-o", str(out)]
        command += [*flags, "--calibration", args.calibration, "--samples", str(args.samples)]
        command += ["--sequence-length", "512", "--no-eval", "--json", "--quiet"]
        done = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603
        if done.returncode:
            return {"name": name, "error": done.stdout + done.stderr}
        result = json.loads(done.stdout)
        artifact = open_model(out)
        scores = evaluate_models(artifact, text, reference).to_dict()
        row = {"name": name, "recipe": result["recipe"], "bytes": result["bytes"]}
        for key in ("bits_per_weight", "seconds", "cpu_seconds", "peak_rss_bytes"):
            row[key] = result[key]
        row["formats"] = formats(args.model, artifact)
        return row | {key: scores[key] for key in ("perplexity", "kl", "top1_agreement", "tokens")}


def formats(model: Path, artifact: OpenModel) -> dict[str, int]:
    """Bytes in every format that holds these codes, decoded to the very same weights."""
    source, found = open_model(model), {}
    modules = source.skeleton.model.named_modules()
    names = [n for n, m in modules if is_linear(m) and artifact.scheme(n)]
    schemes = {n: artifact.qtensor(n).scheme for n in names}
    for key in registry.names("formats"):
        output: Format = registry.load("formats", key, "FORMAT")
        facts = {n: linear_facts(n, source.skeleton.model.get_submodule(n)) for n in names}
        if any(output.check(schemes[n], facts[n]) for n in names):
            continue
        for n in names:
            qtensor = artifact.qtensor(n)
            again = output.decode(output.encode(qtensor, source.dtype_name), schemes[n], facts[n])
            if not torch.equal(again.dequantize(), qtensor.dequantize()):
                raise SystemExit(f"{key} changes {n}")
        found[key] = sum(spec.nbytes for spec in planned_tensors(source, schemes, output))
    return found


def line(row: dict[str, Any]) -> str:
    """A row of the Markdown table."""
    if "error" in row:
        return f"| {row['name']} | failed: {row['error'][:200]} |"
    held = ", ".join(f"{k} {v / 1e6:.1f}" for k, v in row["formats"].items())
    ppl, kl = row["perplexity"], row["kl"]
    return (
        f"| {row['name']} | {held} | {row['bits_per_weight']:.2f} "
        f"| {ppl['value']:.2f} ± {ppl['standard_error']:.2f} "
        f"| {kl['mean']:.4f} ± {kl['standard_error']:.4f} | {100 * row['top1_agreement']:.1f} "
        f"| {row['seconds']:.0f} | {row['cpu_seconds']:.0f} | {row['peak_rss_bytes'] / 1e6:.0f} |"
    )


if __name__ == "__main__":
    main()
