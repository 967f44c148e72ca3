"""Several processes beside one, on a CPU: seconds of the calibrated part, and equal bytes.

    python -m benchmarks.ranks [--counts 1,2] [--samples 16] [--length 1024] [--rounds 1]

A Llama of three blocks in the shape of 1B with random weights is quantized with GPTQ by one process
and by several, each with one thread. The calibrated part is all from the plan to the last block:
reading, forwards, statistics, solving.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers

import quantkit
from benchmarks.gpu import TOKENIZER
from quantkit.checkpoint.files import sha256
from quantkit.model.embedded_model import FOLDER

ONE = """
import json, sys
from time import perf_counter
import quantkit
def report(progress):
    ends.setdefault(progress.stage, []).append(perf_counter())
if __name__ == "__main__":
    model, out, method, devices, samples, length = sys.argv[1:]
    recipe = quantkit.build_recipe(method, samples=int(samples), sequence_length=int(length))
    ends = {}
    quantkit.quantize(
        model, out, recipe=recipe, devices=devices, evaluate=False, report=report
    )
    at = [ends["plan"][-1], *ends["quantize"]]
    print(json.dumps([b - a for a, b in zip(at, at[1:])]))
"""


def main() -> None:
    """Parse the options, run all counts in turns, and print seconds, ratios and hashes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--counts", default="1,2")
    parser.add_argument("--method", default="gptq")
    numbers = {"samples": 16, "length": 1024, "rounds": 1}
    for name, value in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    wanted = parser.parse_args()
    counts = [int(count) for count in wanted.counts.split(",")]
    seconds: dict[int, list[float]] = {count: [] for count in counts}
    hashes = set()
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        make_model(model)
        for round_ in range(wanted.rounds):
            for count in counts:
                out = Path(folder) / f"{count}-{round_}"
                blocks = timed(model, out, count, wanted)
                seconds[count].append(sum(blocks))
                hashes.add(sha256(out / "model.safetensors"))
                each = ", ".join(f"{block:.1f}" for block in blocks)
                print(f"{count} ranks: {sum(blocks):.1f} s, by block {each}", flush=True)
    middle = {count: statistics.median(found) for count, found in seconds.items()}
    for count in counts:
        print(f"{count} ranks: {middle[counts[0]] / middle[count]:.2f} times {counts[0]}'s speed")
    print(f"{len(hashes)} different artifacts, quantkit {quantkit.__version__}")


def make_model(folder: Path) -> None:
    """Llama-3.2-1B's shape with three blocks and a small vocabulary, random."""
    config = transformers.LlamaConfig(
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=3,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=8192,
        bos_token_id=0,
        eos_token_id=1,
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    for name in TOKENIZER:
        if (FOLDER / name).is_file():
            shutil.copy(FOLDER / name, folder / name)


def timed(model: Path, out: Path, count: int, wanted: Any) -> list[float]:
    """Seconds of each block of a run with so many ranks, that of the first with what is before."""
    script = out.with_suffix(".py")
    script.write_text(ONE)  # a file: other processes import it
    devices = ",".join(["cpu"] * count)
    numbers = [str(wanted.samples), str(wanted.length)]
    done = subprocess.run(  # noqa: S603 - our own command
        [sys.executable, str(script), str(model), str(out), wanted.method, devices, *numbers],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    found: list[float] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    main()
