"""Every grid of floats by quantkit, plain, searched and by GPTQ, as peers.py leaves a peer's.

    python floats.py MODEL OUT --samples 32 --length 512
    python peer_table.py MODEL OUT/* --text text.jsonl -o table.json

Plain has scales that span their weights, searched the best storable ones by the diagonal of the
Hessian, recipe what the recipe of that name does. Weights alone; `tokens.npy` beside the folders
holds the windows, for the peers. Folders that exist are kept. Runs in quantkit's environment.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from measure import measure

from quantkit.calibration.text import read_documents
from quantkit.calibration.tokens import load_tokenizer, tokenize

HERE = Path(__file__).resolve().parent
GRIDS = {
    "fp8-channel": ("fp8", 8, "channel"),
    "fp8-tensor": ("fp8", 8, "tensor"),
    "fp8-block": ("fp8", 8, "128x128"),
    "mxfp8": ("mxfp8", 8, 32),
    "nvfp4": ("nvfp4", 4, 16),
    "mxfp4": ("mxfp4", 4, 32),
}
SETTINGS = {
    "plain": ["--method", "rtn", "--set", "options.search=false", "--samples", "0"],
    "searched": ["--method", "rtn"],
    "gptq": ["--method", "gptq"],
}
RECIPES = {"nvfp4": "nvfp4-w4a16", "mxfp4": "mxfp4"}


def commands(scheme: str) -> dict[str, list[str]]:
    """Setting -> arguments of `quantkit quantize` beside model, output and calibration."""
    grid, bits, size = GRIDS[scheme]
    stated = [f"scheme.grid={grid}", f"scheme.bits={bits}", f"scheme.group_size={size}"]
    common = ["--format", "compressed-tensors", *(f"--set={each}" for each in stated)]
    found = {setting: [*common, *changes] for setting, changes in SETTINGS.items()}
    if scheme in RECIPES:
        found["recipe"] = ["--recipe", RECIPES[scheme]]
    return found


def run(model: Path, out: Path, arguments: list[str], calibration: list[str]) -> dict[str, object]:
    """Quantizes into `out`, decodes the artifact there, and gives the figures."""
    out.mkdir(parents=True)
    own = [] if "--samples" in arguments else calibration
    start = [sys.executable, "-m", "quantkit", "quantize", str(model), "-o", str(out / "artifact")]
    found = measure([*start, "--no-eval", *arguments, *own], out / "log.txt")
    figures: dict[str, object] = {**found, "load_average": os.getloadavg()[0]}
    if not found["exit_code"]:
        dense = [str(HERE / "dense.py"), str(out / "artifact"), str(out / "dense.safetensors")]
        done = subprocess.run([sys.executable, *dense], check=True, capture_output=True, text=True)  # noqa: S603
        figures |= json.loads(done.stdout)
    return figures


def main() -> None:
    """Leaves a folder for each grid and setting."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--schemes", nargs="+", choices=GRIDS, default=list(GRIDS))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    calibration = ["--samples", str(args.samples), "--sequence-length", str(args.length)]
    tokenizer = load_tokenizer(args.model)
    read = tokenize(read_documents("default"), tokenizer, args.samples, args.length, "default")
    np.save(args.out / "tokens.npy", read.input_ids.numpy())
    for scheme in args.schemes:
        for setting, arguments in commands(scheme).items():
            out = args.out / f"{scheme}-{setting}"
            if out.exists():
                continue
            figures = run(args.model, out, arguments, calibration)
            row = {"peer": "quantkit", "scheme": scheme, "method": setting, "options": {}}
            report = {**row, "activations": False, **figures}
            (out / "figures.json").write_text(json.dumps(report, indent=2) + "\n")
            print(out.name, f"{figures['cpu_seconds']:.0f} s", flush=True)


if __name__ == "__main__":
    main()
