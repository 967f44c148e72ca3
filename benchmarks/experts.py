"""How well experts are quantized: policies, shrinkage and few calibration tokens, and a peer.

    python -m benchmarks.experts FOLDER [--bits 4 3] [--samples 128 16 2] [--peer PYTHON]

FOLDER/model is a small mixture of experts; it is trained where there is none (15 minutes on
a core). Prints KL to it on held-out text for rounding to nearest and for GPTQ: on the tokens that
each expert is sent, on all tokens, and without shrinkage. `--peer` is the Python of an environment
with GPTQModel, which gets the tokens that quantkit used.
"""

import argparse
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import numpy as np

import quantkit
from benchmarks.experts_model import made
from quantkit.calibration.text import read_documents
from quantkit.calibration.tokens import load_tokenizer, tokenize
from quantkit.model.embedded_model import HELDOUT
from quantkit.pipeline import pauses

LENGTH = 512
VARIANTS = {
    "gptq": [],
    "gptq, not shrunk": [],
    "gptq, all tokens": ["calibration.experts=all"],
}
ALONE = ["allow_partial=true", 'overrides=[{match: "*self_attn*", skip: true}]']


def kl(artifact: Path, reference: Path, windows: int) -> str:
    """KL to the original in nats a token, with its standard error."""
    text = {"text": str(HELDOUT), "windows": windows, "allow_overlap": True}
    found = quantkit.evaluate(str(artifact), reference=str(reference), **text)
    assert found.kl is not None
    return f"{found.kl.mean:.5f} ± {found.kl.standard_error:.5f}"


def built(model: Path, out: Path, **flags: object) -> float:
    """Seconds to make the artifact in `out` anew."""
    shutil.rmtree(out, ignore_errors=True)
    recipe = quantkit.build_recipe(None, group_size=64, sequence_length=LENGTH, **flags)
    return quantkit.quantize(str(model), out, recipe=recipe, evaluate=False).cost.seconds


@contextmanager
def shrinking(*, on: bool) -> Iterator[None]:
    """Experts with few tokens as they are shipped, or without their shrinkage."""
    with patch.object(pauses, "ENOUGH", pauses.ENOUGH if on else 0):
        yield


def peer(python: str, model: Path, tokens: Path, bits: int, out: Path) -> str:
    """KL of GPTQModel's artifact of the same model, tokens, bits and group size."""
    here = Path(__file__).parent
    shutil.rmtree(out, ignore_errors=True)
    words = [python, str(here / "peers.py"), "--peer", "gptqmodel", "--model", str(model)]
    words += ["--tokens", str(tokens), "--bits", str(bits), "--group-size", "64", "--out", str(out)]
    done = subprocess.run(words, check=False, capture_output=True, text=True)  # noqa: S603
    if not (out / "artifact").exists():
        return f"failed: {done.stderr.strip().splitlines()[-1:]}"
    return kl(out / "artifact", model, 64)


def main() -> None:
    """Print a row a build."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--bits", type=int, nargs="+", default=[4, 3])
    parser.add_argument("--samples", type=int, nargs="+", default=[128, 16, 2])
    parser.add_argument("--steps", type=int, default=500, help="of training")
    parser.add_argument("--windows", type=int, default=64, help="of evaluation")
    parser.add_argument("--alone", action="store_true", help="quantize experts alone")
    parser.add_argument("--peer", metavar="PYTHON")
    args = parser.parse_args()
    model = made(args.folder / "model", args.steps)
    out, fixed = args.folder / "out", ALONE if args.alone else []
    print("| bits | samples | method | KL | tokens an expert: least, median, most | s |")
    print("|---|---|---|---|---|---|")
    for bits in args.bits:
        built(model, out, method="rtn", bits=bits, samples=0, settings=fixed)
        print(f"| {bits} | 0 | rtn | {kl(out, model, args.windows)} | | |", flush=True)
        for samples in args.samples:
            for name, policy in VARIANTS.items():
                flags = {"bits": bits, "samples": samples, "settings": [*fixed, *policy]}
                with shrinking(on="not" not in name):
                    seconds = built(model, out, method="gptq", **flags)
                found = json.loads((out / "quantkit.json").read_text())
                counts = sorted(n for layer in found["expert_tokens"].values() for n in layer)
                spread = f"{counts[0]}, {counts[len(counts) // 2]}, {counts[-1]}"
                row = f"| {bits} | {samples} | {name} | {kl(out, model, args.windows)}"
                print(f"{row} | {spread} | {seconds:.0f} |", flush=True)
            if args.peer and samples == max(args.samples):
                documents, tokenizer = read_documents("default"), load_tokenizer(model)
                found = tokenize(documents, tokenizer, samples, LENGTH, "default")
                np.save(args.folder / "tokens.npy", found.input_ids.numpy())
                figure = peer(
                    args.peer, model, args.folder / "tokens.npy", bits, args.folder / "peer"
                )
                print(f"| {bits} | {samples} | GPTQModel | {figure} | | |", flush=True)


if __name__ == "__main__":
    main()
