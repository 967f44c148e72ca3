"""Speed of every quantized kernel on this machine beside dense bf16 and fp32, as ratios.

    python kernel_speed.py [--json FILE]                layers of the shapes of an 8B model
    python kernel_speed.py --model MODEL [ARTIFACT...]  a model, and what was made of it

Takes OMP_NUM_THREADS threads; with one thread the seconds are the thread's own, so that a program
beside it takes none. All candidates of one shape take turns in one process, so a clock that drifts
slows all. A ratio is the median over the turns of seconds dense / seconds kernel. Codes are random,
as no kernel's time depends on them; artifacts of the model are measured as they are.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter, thread_time

import torch
from torch.nn import functional

from quantkit.bench.kernel import Kernel, WeightFacts, fitting
from quantkit.bench.linear import QuantizedLinear, choose_kernel
from quantkit.bench.runtime import Runtime, load_runtime
from quantkit.bench.timing import Cell, Effort, measure_cell
from quantkit.core.errors import RefusedError
from quantkit.core.scheme import Scheme
from quantkit.grid.qtensor import QTensor
from quantkit.model.open import open_model
from quantkit.model.opened import OpenModel

SHAPES = ((4096, 4096), (14336, 4096), (4096, 14336))  # outputs, inputs
ROWS = (1, 512, 2048)
SCHEMES = (
    Scheme(),
    Scheme(symmetric=False, group_size=128),
    Scheme(group_size=None),
    Scheme("int", 8, None),
    Scheme("int", 8, 128),
    Scheme("int", 8, None, activation="int8-token"),
    Scheme("nf4"),
)
CONTEXTS, DECODE_STEPS = (512, 2048), 32
MODEL_SCHEMES = (SCHEMES[0], SCHEMES[3], SCHEMES[5], SCHEMES[6])
TURNS, SECONDS = 7, 10.0
Work = Callable[[], object]
Row = dict[str, object]


def random_qtensor(scheme: Scheme, outputs: int, inputs: int) -> QTensor:
    """A weight of random codes, of a size that keeps a model's numbers finite."""
    codes = torch.randint(1 << scheme.bits, (outputs, inputs), dtype=torch.uint8)
    if scheme.grid == "nf4":
        return QTensor(
            codes, torch.rand(codes.numel() // (scheme.group_size or 64)) / 20, None, scheme
        )
    scales = torch.rand(outputs, scheme.groups(inputs)) / (10 << scheme.bits)
    zeros = None if scheme.symmetric else torch.full(scales.shape, 7, dtype=torch.uint8)
    return QTensor(codes, scales, zeros, scheme)


def own_clock() -> Callable[[], float]:
    """CPU seconds where one thread does all the work, else seconds on the wall."""
    return thread_time if torch.get_num_threads() == 1 else perf_counter


def in_turns(works: Sequence[Work]) -> list[list[float]]:
    """Seconds of each work, all of them once a turn, there and back; one turn is not counted."""
    seconds: list[list[float]] = [[] for _ in works]
    clock = own_clock()
    started = monotonic()
    for turn in range(TURNS + 1):
        for i in list(range(len(works)))[:: -1 if turn % 2 else 1]:
            before = clock()
            works[i]()
            seconds[i].append(clock() - before)
        if turn >= 2 and monotonic() - started > SECONDS * len(works):
            break
    return [values[1:] for values in seconds]


@torch.inference_mode()
def layer_rows(outputs: int, inputs: int) -> list[Row]:
    """Dense and quantized products of one shape, at each number of rows."""
    weight = torch.randn(outputs, inputs)
    dense = {"dense bf16": weight.bfloat16(), "dense fp32": weight}
    jobs = [WeightFacts(scheme, outputs, inputs, torch.bfloat16) for scheme in SCHEMES]
    packed = []
    for job in jobs:
        qtensor = random_qtensor(job.scheme, outputs, inputs)
        try:
            kernels = fitting(job)
        except RefusedError as refusal:
            print(f"{refusal.what}: {refusal.why}", file=sys.stderr)
            continue
        packed += [(job.scheme, k, k.pack(qtensor, job.dtype)) for k in kernels]
    found: list[Row] = []
    for count in ROWS:
        x = torch.randn(count, inputs)
        names, works = [], []
        for name, matrix in dense.items():
            names.append((name, "torch linear"))
            works.append(partial(functional.linear, x.to(matrix.dtype), matrix))
        for scheme, kernel, parts in packed:
            names.append((scheme.label(), kernel.name))
            works.append(partial(kernel.multiply, x.bfloat16(), parts))
        seconds = in_turns(works)
        for (scheme_name, kernel_name), mine in zip(names, seconds, strict=True):
            ratios = {
                f"of_{name.removeprefix('dense ')}": median(
                    a / b for a, b in zip(seconds[i], mine, strict=True)
                )
                for i, name in enumerate(dense)
            }
            row = {"shape": f"{outputs} x {inputs}", "rows": count, "scheme": scheme_name}
            found.append(row | {"kernel": kernel_name, "ms": 1000 * median(mine)} | ratios)
            _show(found[-1])
    return found


def random_runtime(model: OpenModel, scheme: Scheme) -> Runtime:
    """The model with random codes of `scheme` in place of its blocks' linears."""
    runtime = load_runtime(model)
    counts: dict[str, int] = {}
    chosen: dict[tuple[int, int], Kernel] = {}
    for block, module in runtime.blocks():
        for name, linear in list(module.named_modules()):
            if isinstance(linear, torch.nn.Linear):
                shape = linear.out_features, linear.in_features
                qtensor = random_qtensor(scheme, *shape)
                if shape not in chosen:
                    chosen[shape] = choose_kernel(qtensor, model.dtype)
                kernel = chosen[shape]
                made = QuantizedLinear(kernel, qtensor, model.dtype, linear.bias)
                runtime.network.set_submodule(f"{block}.{name}", made)
                counts[kernel.name] = counts.get(kernel.name, 0) + 1
    return replace(runtime, kernels=counts)


def model_rows(model: str, artifacts: Sequence[Path]) -> list[Row]:
    """A model dense and its artifacts: prefill and decode tokens a second, all in turns."""
    bfloat16 = torch.bfloat16
    runtimes: dict[str, Runtime] = {}
    for dtype in (bfloat16, torch.float32):
        opened = replace(open_model(Path(model)), dtype=dtype)
        runtimes[str(dtype).replace("torch.", "dense ")] = load_runtime(opened)
    for scheme in MODEL_SCHEMES:
        opened = replace(open_model(Path(model)), dtype=bfloat16)
        runtimes[scheme.label()] = random_runtime(opened, scheme)
    for folder in artifacts:
        try:
            runtimes[folder.name] = load_runtime(replace(open_model(folder), dtype=bfloat16))
        except RefusedError as refusal:
            print(f"{folder.name}: {refusal.what}: {refusal.why}", file=sys.stderr)
    networks = [runtime.network for runtime in runtimes.values()]
    found: list[Row] = []
    for context in CONTEXTS:
        effort = Effort(1, TURNS, SECONDS * len(networks), own_clock())
        timings = measure_cell(networks, Cell(1, context, DECODE_STEPS), effort)
        for (name, runtime), mine in zip(runtimes.items(), timings, strict=True):
            row: Row = {"scheme": name, "kernel": runtime.kernel, "context": context}
            for phase in ("prefill", "decode"):
                rates = getattr(mine, f"{phase}_rates")
                row[f"{phase}_tokens_per_s"] = median(rates)
                for i, dtype in enumerate(("bf16", "fp32")):
                    other = getattr(timings[i], f"{phase}_rates")
                    ratio = median(a / b for a, b in zip(rates, other, strict=True))
                    row[f"{phase}_of_{dtype}"] = ratio
            found.append(row)
            _show(row)
    return found


def _show(row: Row) -> None:
    cells = (f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values())
    print("\t".join(cells), flush=True)


def main() -> None:
    """Print one line a measurement; with --json also keep them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="folder of a model to measure end to end")
    parser.add_argument("artifacts", nargs="*", type=Path, help="what quantkit made of the model")
    parser.add_argument("--json", type=Path, help="file for the figures")
    args = parser.parse_args()
    torch.manual_seed(0)
    if args.model:
        found = model_rows(args.model, args.artifacts)
    else:
        found = [row for shape in SHAPES for row in layer_rows(*shape)]
    if args.json:
        machine = {"threads": torch.get_num_threads(), "torch": torch.__version__}
        load = {"cpu": torch.backends.cpu.get_cpu_capability(), "load": os.getloadavg()[0]}
        args.json.write_text(json.dumps({"machine": machine | load, "rows": found}, indent=1))


if __name__ == "__main__":
    main()
