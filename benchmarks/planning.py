"""Planned bytes and peak memory beside the real ones: each run in a process of its own.

    python planning.py MODEL [MODEL ...] [--samples 16] [--sequence-length 512] [--json FILE]
    python planning.py --wide FOLDER 2048 8192 2     # first makes a model of these widths and depth

Every method, format and kind of scheme in RUNS is tried on every model; what a model or a format
cannot hold is shown as refused.  OMP_NUM_THREADS counts as everywhere.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

RUNS: dict[str, dict[str, Any]] = {
    "rtn, no inputs": {"method": "rtn", "samples": 0},
    "rtn g32": {"method": "rtn", "group_size": 32},
    "nf4, no inputs": {"method": "nf4", "samples": 0},
    "nf4": {"recipe": "nf4"},
    "nf4 double": {"recipe": "nf4-double"},
    "gptq": {"method": "gptq"},
    "gptq asymmetric": {"method": "gptq", "symmetric": False},
    "gptq W3 compressed": {"method": "gptq", "bits": 3, "format": "compressed-tensors"},
    "gptq W8 channel": {"method": "gptq", "bits": 8, "group_size": "channel"},
    "awq": {"method": "awq"},
    "awq compressed g32": {"method": "awq", "format": "compressed-tensors", "group_size": 32},
    "w8a16": {"recipe": "w8a16"},
    "smoothquant": {"method": "smoothquant"},
}

ONE = """
import json, sys, quantkit
model, out, recipe, flags = sys.argv[1:3] + [json.loads(a) for a in sys.argv[3:]]
from quantkit.core.errors import QuantkitError
try:
    built = quantkit.build_recipe(recipe, **flags)
    quantkit.quantize(model, out, recipe=built, evaluate=False)
except QuantkitError as error:
    print(json.dumps(error.what))
    raise SystemExit(error.exit_code)
"""


def one(model: Path, run: dict[str, Any], samples: int, length: int) -> dict[str, Any]:
    """What one run was planned to take and took, in bytes and seconds, or why it was refused."""
    flags = {"samples": samples, "sequence_length": length} | run
    recipe = flags.pop("recipe", None)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        arguments = [str(model), str(out), json.dumps(recipe), json.dumps(flags)]
        command = [sys.executable, "-c", ONE, *arguments]
        done = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603
        if done.returncode:
            return {"refused": (done.stdout or done.stderr).strip().splitlines()[-1]}
        manifest = json.loads((out / "quantkit.json").read_text())
        written = sum(path.stat().st_size for path in out.glob("*.safetensors"))
    planned, measured = manifest["planned"], manifest["measured"]
    return {
        "planned_bytes": planned["bytes"],
        "bytes": written,
        "base_rss_bytes": planned["base_rss_bytes"],
        "planned_peak_bytes": planned["peak_rss_bytes"],
        "peak_bytes": measured["peak_rss_bytes"],
        "seconds": measured["seconds"],
        "planned_seconds": [planned.get("least_seconds"), planned.get("most_seconds")],
    }


def line(found: dict[str, Any]) -> str:
    """The figures of a run: bytes planned and written, memory in MB, and the error of the plan."""
    if "refused" in found:
        return f"refused: {found['refused']}"
    megabytes = [found[k] / 1e6 for k in ("base_rss_bytes", "planned_peak_bytes", "peak_bytes")]
    error = found["planned_peak_bytes"] / found["peak_bytes"] - 1
    least, most = found["planned_seconds"]
    return (
        f"{found['planned_bytes']:12,} {found['bytes']:12,} "
        + " ".join(f"{value:7,.0f}" for value in megabytes)
        + f" {error:+7.1%} {found['seconds']:6.0f} s"
        + (f" of {least:.0f} to {most:.0f} planned" if least is not None else "")
    )


def make_wide(folder: Path, hidden: int, width: int, layers: int) -> None:
    """A Llama of random bf16 weights, with the embedded model's tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from quantkit.model.embedded_model import FOLDER

    config = LlamaConfig.from_pretrained(
        FOLDER,
        hidden_size=hidden,
        intermediate_size=width,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 256,
        max_position_embeddings=2048,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    for path in FOLDER.glob("tokenizer*"):
        shutil.copy(path, folder)


def main() -> None:
    """Print a line a run, the largest errors at the end; figures go to `--json`, too."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--wide", nargs=4, metavar=("FOLDER", "HIDDEN", "WIDTH", "LAYERS"))
    parser.add_argument("--only", nargs="+", choices=RUNS, default=list(RUNS))
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--sequence-length", type=int, default=512)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    models = args.models
    if args.wide:
        models = [*models, Path(args.wide[0])]
        if not models[-1].exists():
            make_wide(models[-1], *map(int, args.wide[1:]))
    found = []
    print("planned and real bytes; MB held before, planned peak, real peak; error; seconds")
    for model in models:
        for name in args.only:
            figures = one(model, RUNS[name], args.samples, args.sequence_length)
            found.append({"model": model.name, "run": name, **figures})
            print(f"{model.name:12.12} {name:20} {line(figures)}", flush=True)
            if args.json:
                args.json.write_text(json.dumps(found, indent=2))
    done = [figures for figures in found if "bytes" in figures]
    errors = sorted(f["planned_peak_bytes"] / f["peak_bytes"] - 1 for f in done)
    wrong = sum(f["planned_bytes"] != f["bytes"] for f in done)
    print(f"{len(done)} runs: bytes wrong in {wrong}, memory {errors[0]:+.1%} to {errors[-1]:+.1%}")


if __name__ == "__main__":
    main()
