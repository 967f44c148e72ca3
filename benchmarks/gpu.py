"""Everything that is to be measured on a GPU, in one command without network: a JSON and a table.

    python -m benchmarks.gpu -o gpu.json [--blocks 32] [--width 4096] [--samples 128]

One group of GPTQ is solved by torch's operators and by the Triton programs. A Llama of that shape
with random weights is quantized with every method (default: 8B) in a process of its own each; GPTQ
twice, for equal bytes, and once more under `--max-vram 12GiB`. The pair of GPTQ is evaluated;
decoding with 4-bit weights and prefill with 8-bit weights and inputs are timed beside the original
in our own kernels, and in vLLM where it is installed. A part that fails, or for which no time is
left, says so in its place; each is written as soon as it is known. Without a GPU it says so;
`--device cpu` tries the script itself, with small shapes.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import Any

import torch

from quantkit.bench.vllm import PYTHON
from quantkit.checkpoint.files import sha256
from quantkit.pipeline.memory import give_back_gpu

METHODS = ("gptq", "awq", "smoothquant", "nf4", "rtn")
AGAIN, LIMITED, LIMIT = "gptq again", "gptq under 12 GiB", "12GiB"
WAYS = ("own", "vllm")
TIMED = ("bf16", "gptq", "smoothquant")
PHASES = ("prefill_tokens_per_s", "decode_tokens_per_s")
WINDOWS, WINDOW = 64, 2048
STOP_SECONDS = 30
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")

ONE = """
import json, sys, torch, quantkit
model, out, method, device, samples, length, most = sys.argv[1:]
limit = {"max_ram" if device == "cpu" else "max_vram": most or None}
recipe = quantkit.build_recipe(method, samples=int(samples), sequence_length=int(length))
quantkit.quantize(model, out, recipe=recipe, evaluate=False, device=device, **limit)
if device != "cpu":
    found = torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
    print(json.dumps(dict(zip(("allocated", "reserved"), found))))
"""


def main() -> None:
    """Parse the options and run all parts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, default=Path("gpu.json"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--folder", type=Path, help="where models are made; default: a temporary one"
    )
    numbers = {"blocks": 32, "width": 4096, "samples": 128, "length": 2048, "seconds": 470}
    for name, value in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    wanted = parser.parse_args()
    if wanted.device != "cpu" and not torch.cuda.is_available():
        print("torch finds no GPU: nothing was measured")
        return
    with tempfile.TemporaryDirectory() as temporary:
        run(wanted, wanted.folder or Path(temporary))
    print(table(json.loads(wanted.output.read_text())))


def run(wanted: argparse.Namespace, folder: Path) -> None:
    """All parts, what matters most first, each written to the output when it ends."""
    found: dict[str, Any] = {"machine": machine(wanted.device), "shape": shape_of(wanted)}
    end = perf_counter() + wanted.seconds

    def left() -> float:
        return end - perf_counter()

    def part(name: str, measure: Callable[[], Any]) -> None:
        started = perf_counter()
        found[name] = attempted(measure, left())
        give_back_gpu()  # the next part may be another process
        print(f"{name}: {perf_counter() - started:.1f} s", flush=True)
        wanted.output.write_text(json.dumps(found, indent=1))

    def make(method: str, name: str, most: str = "") -> None:
        part(name, lambda: quantized(model, folder / name, method, wanted, left(), most))

    def time(way: str) -> None:
        for name in TIMED:
            part(f"{way} {name}", lambda name=name: speed(way, folder / name, wanted, left()))
        found[f"{way} ratios"] = ratios(way, found)

    model = folder / TIMED[0]
    part("group", lambda: group(wanted.device, wanted.width))
    part("model", lambda: make_model(model, wanted))
    make("gptq", "gptq")
    part("evaluation", lambda: evaluated(model, folder / "gptq", wanted))
    make("smoothquant", "smoothquant")
    time("own")
    for method in METHODS:
        if method not in found:
            make(method, method)
    make("gptq", AGAIN)
    make("gptq", LIMITED, LIMIT)
    time("vllm")
    wanted.output.write_text(json.dumps(found, indent=1))


def attempted(measure: Callable[[], Any], seconds_left: float) -> Any:
    """What a part found, or why it failed, which leaves the others."""
    if seconds_left <= 0:
        return {"failed": "no time is left"}
    try:
        return measure()
    except Exception as error:  # noqa: BLE001 - whatever it is
        return {"failed": f"{type(error).__name__}: {error}"}


def machine(device: str) -> dict[str, Any]:
    """What the figures belong to."""
    found: dict[str, Any] = {"torch": torch.__version__, "device": device}
    if device != "cpu":
        properties = torch.cuda.get_device_properties(device)
        found |= {
            "gpu": properties.name,
            "memory": properties.total_memory,
            "capability": f"{properties.major}.{properties.minor}",
            "cuda": torch.version.cuda,
        }
    return found


def shape_of(wanted: argparse.Namespace) -> dict[str, int]:
    """Llama-3.1-8B's shape, in proportion to the width."""
    heads = wanted.width // 128
    return {
        "hidden_size": wanted.width,
        "intermediate_size": wanted.width * 7 // 2,
        "num_hidden_layers": wanted.blocks,
        "num_attention_heads": heads,
        "num_key_value_heads": max(1, heads // 4),
        "head_dim": 128,
        "vocab_size": 128_256 if wanted.device != "cpu" else 8192,
        "max_position_embeddings": 8192,
    }


def make_model(folder: Path, wanted: argparse.Namespace) -> dict[str, int]:
    """A folder with random weights of the size that training leaves, made on the device."""
    import transformers

    from quantkit.model.embedded_model import FOLDER

    config = transformers.LlamaConfig(
        **shape_of(wanted), dtype="bfloat16", bos_token_id=0, eos_token_id=1
    )
    torch.manual_seed(0)
    with torch.device(wanted.device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    for name in TOKENIZER:
        if (FOLDER / name).is_file():
            shutil.copy(FOLDER / name, folder / name)
    return {"parameters": sum(p.numel() for p in model.parameters())}


def quantized(
    model: Path,
    output: Path,
    method: str,
    wanted: argparse.Namespace,
    most_seconds: float,
    most: str = "",
) -> dict[str, Any]:
    """Seconds of the command, planned and measured bytes, and hashes of the weight files.

    `most`: the limit of the device's memory, as text; empty for none.
    """
    told = [model, output, method, wanted.device, wanted.samples, wanted.length, most]
    started = perf_counter()
    printed = child(["-c", ONE, *map(str, told)], most_seconds)
    seconds = perf_counter() - started
    manifest = json.loads((output / "quantkit.json").read_text())
    memory = json.loads(printed) if wanted.device != "cpu" else {}
    return {
        "seconds": seconds,
        "measured": manifest["measured"],
        "planned": manifest["planned"],
        "sha256": [sha256(path) for path in sorted(output.glob("*.safetensors"))],
        **memory,
    }


def child(arguments: list[str], most_seconds: float) -> str:
    """The last line that another Python prints, which has the GPU's memory to itself.

    Raises:
        RuntimeError: it ends with an error.
        TimeoutError: it takes longer than `most_seconds`, and was ended.
    """
    process = subprocess.Popen(  # noqa: S603 - our own command
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        printed, said = process.communicate(timeout=most_seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # it may have to stop a server, which holds the GPU
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=STOP_SECONDS)
        process.kill()
        raise TimeoutError(f"ended after the {most_seconds:.0f} s that were left") from None
    if process.returncode:
        raise RuntimeError(said.strip()[-2000:] or f"exit code {process.returncode}")
    return (printed.splitlines() or [""])[-1]


def speed(
    way: str, folder: Path, wanted: argparse.Namespace, most_seconds: float
) -> dict[str, Any]:
    """Tokens per second of prefill and decode at batch 1, and the kernels."""
    if way == "vllm" and not os.environ.get(PYTHON) and find_spec("vllm") is None:
        raise RuntimeError(f"vLLM is not installed; {PYTHON} may name its interpreter")
    arguments = ["-m", "benchmarks.gpu_speed", way, wanted.device, str(folder)]
    found: dict[str, Any] = json.loads(child(arguments, most_seconds))
    return found


def ratios(way: str, found: dict[str, Any]) -> dict[str, dict[str, float]]:
    """How many times as fast as the original each artifact is, where both were measured."""
    first, *others = (found[f"{way} {name}"] for name in TIMED)
    return {
        name: {phase: each[phase] / first[phase] for phase in PHASES}
        for name, each in zip(TIMED[1:], others, strict=True)
        if "failed" not in each and "failed" not in first
    }


def evaluated(model: Path, artifact: Path, wanted: argparse.Namespace) -> dict[str, Any]:
    """Seconds of comparing the pair on windows of the bundled text, and the KL."""
    import quantkit

    length = min(WINDOW, wanted.length)
    started = perf_counter()
    found = quantkit.evaluate(
        str(artifact), reference=str(model), windows=WINDOWS, sequence_length=length,
        device=wanted.device, allow_overlap=True,
    )  # fmt: skip
    assert found.kl is not None
    return {"seconds": perf_counter() - started, "tokens": found.tokens, "kl": found.kl.mean}


def group(device: str, width: int) -> list[dict[str, Any]]:
    """LDLQ of one group of linears by torch and by the Triton programs: seconds, what differs."""
    from quantkit.grid import kernel
    from quantkit.grid.affine import AffineGrid
    from quantkit.grid.ldlq import factor, ldlq
    from quantkit.grid.search import Near

    found = []
    draw = torch.Generator(device).manual_seed(0)
    inputs = torch.randn(2 * width, width, generator=draw, device=device)
    feedback = factor(inputs.T @ inputs, torch.arange(width, device=device))
    assert feedback is not None
    if device != "cpu" and kernel.kernel_for(inputs, 128) is None:
        raise RuntimeError("Triton is missing, or the GPU is too old for it")
    for rows in (width, 7 * width):
        weights = torch.randn(width, rows, generator=draw, device=device)
        for symmetric in (True, False):
            grid = AffineGrid(4, symmetric, torch.float16)
            near = Near(grid, search=True, factors=(1.0, 0.94, 1.06))

            def solve(near: Near = near, weights: torch.Tensor = weights) -> Any:
                synchronize(device)
                started = perf_counter()
                out = ldlq(weights, feedback, near.grid, 128, near)
                synchronize(device)
                return out, perf_counter() - started

            solve()  # compiles
            other, fast = solve()
            with without(kernel):
                solve()
                one, slow = solve()
            found.append(
                {
                    "rows": rows, "symmetric": symmetric, "torch": slow, "triton": fast,
                    "codes that differ": float((one[0] != other[0]).float().mean()),
                    "scales that differ": float((one[1] != other[1]).float().mean()),
                }
            )  # fmt: skip
    return found


@contextmanager
def without(kernel: ModuleType) -> Iterator[None]:
    """Leave all work to torch's operators."""
    known = kernel.DEVICES
    kernel.DEVICES = ()
    try:
        yield
    finally:
        kernel.DEVICES = known


def synchronize(device: str) -> None:
    """Wait until the device has done what it was asked."""
    if device != "cpu":
        torch.cuda.synchronize(device)


def table(found: dict[str, Any]) -> str:
    """The figures of the runs in Markdown."""
    lines = ["| run | s | planned GB | allocated GB | reserved GB |", "|---|---|---|---|---|"]
    for name in (*METHODS, AGAIN, LIMITED):
        each = found[name]
        if "failed" in each:
            lines.append(f"| {name} | {failure(each)} | | | |")
            continue
        sizes = (each["planned"].get("work_bytes"), each.get("allocated"), each.get("reserved"))
        shown = " | ".join("" if size is None else f"{size / 1e9:.2f}" for size in sizes)
        lines.append(f"| {name} | {each['seconds']:.1f} | {shown} |")
    once = found["gptq"].get("sha256")
    lines += [
        f"\n{name}: {'equal' if once == other else 'different'} bytes"
        for name in (AGAIN, LIMITED)
        if once and (other := found[name].get("sha256"))
    ]
    lines += [f"Evaluation: {found['evaluation']}", ""]
    return "\n".join([*lines, *speed_table(found)])


def speed_table(found: dict[str, Any]) -> list[str]:
    """Tokens per second at batch 1, with the ratios to the original."""
    lines = ["| speed | prefill | decode | kernels |", "|---|---|---|---|"]
    for way in WAYS:
        for name in TIMED:
            each, times = found[f"{way} {name}"], found[f"{way} ratios"].get(name, {})
            if "failed" in each:
                lines.append(f"| {way}, {name} | {failure(each)} | | |")
                continue
            shown = " | ".join(
                f"{each[phase]:.4g}" + (f" ({times[phase]:.2f} x)" if times else "")
                for phase in PHASES
            )
            lines.append(f"| {way}, {name} | {shown} | {each['kernel']} |")
    return lines


def failure(part: dict[str, Any]) -> str:
    """Why a part has no figures, in a line."""
    return f"failed: {part['failed'].splitlines()[-1]}"


if __name__ == "__main__":
    main()
