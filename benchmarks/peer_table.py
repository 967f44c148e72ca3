"""Scores what peers.py left behind with quantkit's evaluator, against the original.

    python peer_table.py MODEL OUT... --text FILE -o table.json

Both sides are computed in fp32, the original's weights widened without loss, so that the figures
are those of the weights and not of bf16 arithmetic. A run whose artifact could not be written is
scored by the weights of the tool's own forward. Rows of OUT that the file already has are kept.
Activations stay as they are. Runs in quantkit's environment.
"""

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from quantkit.calibration.tokens import load_tokenizer
from quantkit.eval.side_by_side import evaluate_models, read_reference
from quantkit.eval.text import TextChoice
from quantkit.eval.windows import read_text
from quantkit.model.open import open_model


def widened(model: Path, weights: Path | None, folder: Path) -> Path:
    """A model folder in fp32 with the weights of ``model``, those in ``weights`` in their place."""
    folder.mkdir()
    for path in model.iterdir():
        if path.suffix != ".safetensors":
            shutil.copy(path, folder)
    config = json.loads((model / "config.json").read_text()) | {"dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {n: t for p in model.glob("*.safetensors") for n, t in load_file(p).items()}
    if weights:
        found = load_file(weights)
        tensors |= {name: found[name] for name in tensors if name in found}
    wide = {name: tensor.float().contiguous() for name, tensor in tensors.items()}
    save_file(wide, folder / "model.safetensors", {"format": "pt"})
    return folder


def setting(figures: dict[str, Any]) -> str:
    """Method and what was changed of its defaults."""
    changed = [f"{name}={value}" for name, value in figures["options"].items()]
    kind = ["activations"] if figures["activations"] else []
    return ", ".join([figures["method"], *changed, *kind])


def line(row: dict[str, Any]) -> str:
    """A row of the Markdown table."""
    head = f"| {row['peer']} | {row['scheme']} | {row['setting']} |"
    if "kl" not in row:
        return f"{head} failed: {row['error']} |"
    kl, perplexity = row["kl"], row["perplexity"]
    return (
        f"{head} {row.get('bits_per_weight', float('nan')):.3f} "
        f"| {kl['mean']:.5f} ± {kl['standard_error']:.5f} | {perplexity['value']:.3f} "
        f"| {row['cpu_seconds']:.0f} |"
    )


def main() -> None:
    """Prints the table and writes it with all figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("outs", type=Path, nargs="+")
    parser.add_argument("--text", required=True)
    parser.add_argument("--windows", type=int)
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    rows = json.loads(args.output.read_text()) if args.output.exists() else []
    text = read_text(TextChoice(args.text, windows=args.windows), load_tokenizer(args.model))
    with tempfile.TemporaryDirectory(dir=args.output.parent) as temporary:
        original = open_model(widened(args.model, None, Path(temporary) / "original"))
        reference = read_reference(original, text)
        for out in args.outs:
            if out.name in [row["name"] for row in rows]:
                continue
            figures = json.loads((out / "figures.json").read_text())
            row = {"name": out.name, **figures, "setting": setting(figures)}
            files = [out / "dense.safetensors", out / "own.safetensors"]
            if weights := next((file for file in files if file.exists()), None):
                folder = widened(args.model, weights, Path(temporary) / out.name)
                scores = evaluate_models(open_model(folder), text, reference).to_dict()
                shutil.rmtree(folder)
                row |= {name: scores[name] for name in ("kl", "perplexity", "top1_agreement")}
                row["weights"] = weights.stem
            else:
                row["error"] = (out / "log.txt").read_text().strip().splitlines()[-1]
            rows.append(row)
            args.output.write_text(json.dumps(rows, indent=1))
            print(line(row), flush=True)


if __name__ == "__main__":
    main()
