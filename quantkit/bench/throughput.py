"""The throughput of this machine in the operations of quantizing, timed on random tensors."""

from collections.abc import Callable
from time import perf_counter

import torch
from scipy.optimize import nnls
from transformers import LlamaConfig, LlamaModel

from quantkit.calibration.text import read_documents
from quantkit.calibration.tokens import load_tokenizer, tokenize
from quantkit.core import registry
from quantkit.core.errors import ResourceError
from quantkit.core.grid import rounding_of
from quantkit.core.method import Method
from quantkit.core.progress import Progress, Report, silent
from quantkit.core.scheme import Scheme
from quantkit.model.embedded_model import FOLDER
from quantkit.model.open import open_model
from quantkit.model.peaks import resident_bytes
from quantkit.pipeline.memory import give_back
from quantkit.pipeline.prepare import prepare
from quantkit.planning.run.timing import MachineSpeed, Solving, machine_key
from quantkit.recipes.loader import build_recipe
from quantkit.stats.hessian import InputCollector
from quantkit.stats.inputs import InputStats
from quantkit.stats.sizes import CHUNK

SHAPES = ((512, 512), (64, 2048), (2048, 2048))
"""(outputs, inputs) of the timed linears; they differ, so that the terms can be separated."""
WIDTH = 1024
"""Hidden size of the block whose forward is timed."""
TIMES = 2
"""Repeats, of which the fastest counts: other programs only make a repeat slower."""
SCHEMES = (
    Scheme("int", 4, 64),
    Scheme("nf4", 4, 64),
    Scheme("int", 8, None, activation="int8-token"),
)
"""Each method is timed with the first scheme that it supports."""
DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32}


def time_machine(report: Report = silent) -> MachineSpeed:
    """The speed of this machine's CPU with as many threads as torch uses.

    Raises:
        ResourceError: the system does not report how much memory a process holds.
    """
    prepare(open_model(FOLDER), build_recipe("rtn"))  # import everything that a run imports
    tokenize(read_documents("default"), load_tokenizer(FOLDER), 4, 64, "default")
    run_kernels()
    give_back()
    base = resident_bytes()
    if base is None:
        raise ResourceError(
            "this system does not report the memory of a process", hint="use Linux for timings"
        )
    methods = [registry.load("methods", name, "METHOD") for name in registry.names("methods")]
    generator = torch.Generator().manual_seed(0)
    inputs = {width: _inputs(width, generator) for _, width in SHAPES}
    solving = {}
    for done, method in enumerate(methods, 1):
        solving[method.name] = _solving(method, inputs, generator)
        report(Progress("timing", done, len(methods), method.name))
    widest = max(inputs)
    return MachineSpeed(
        machine=machine_key(),
        forward={name: _forward(dtype) for name, dtype in DTYPES.items()},
        hessian=_hessian(inputs[widest]),
        solving=solving,
        base_rss_bytes=base,
    )


@torch.no_grad()
def run_kernels() -> None:
    """Run each kind of kernel once on small tensors, so that libraries load all their code."""
    for dtype in DTYPES.values():
        x = torch.eye(256, dtype=dtype)
        torch.nn.functional.linear(x, x)
        heads = x.view(1, 4, 64, 256)
        torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
    square = torch.eye(256)
    torch.linalg.cholesky_ex(square)
    torch.linalg.solve_triangular(square, square, upper=False)


def _inputs(width: int, generator: torch.Generator) -> torch.Tensor:
    """Activations (1, CHUNK, width) fp32 with correlated channels."""
    mixing = torch.randn(width, width, generator=generator) / width**0.5
    states: torch.Tensor = torch.randn(1, CHUNK, width, generator=generator) @ mixing
    return states


def _fastest(work: Callable[[], object]) -> float:
    """Seconds."""
    found = []
    for _ in range(TIMES):
        started = perf_counter()
        work()
        found.append(perf_counter() - started)
    return min(found)


@torch.no_grad()
def _forward(dtype: torch.dtype) -> float:
    """Seconds per multiply-add of a block's forward, including its other operations."""
    config = LlamaConfig(
        hidden_size=WIDTH,
        intermediate_size=3 * WIDTH,
        num_attention_heads=WIDTH // 64,
        num_hidden_layers=1,
        vocab_size=1,
    )
    block = LlamaModel(config).to(dtype)
    weights = sum(m.weight.numel() for m in block.modules() if isinstance(m, torch.nn.Linear))
    states = torch.ones(4, CHUNK // 4, WIDTH, dtype=dtype)
    return _fastest(lambda: block(inputs_embeds=states, use_cache=False)) / (CHUNK * weights)


def _hessian(inputs: torch.Tensor) -> float:
    """Seconds per multiply-add of a Hessian (1, tokens, width), of which one half is computed."""
    tokens, width = inputs.shape[1:]
    return _fastest(lambda: InputCollector().add(inputs)) / (tokens * width**2 / 2)


def _statistics(inputs: torch.Tensor) -> InputStats:
    collector = InputCollector()
    collector.add(inputs)
    return collector.finish()


def _solving(
    method: Method, inputs: dict[int, torch.Tensor], generator: torch.Generator
) -> Solving:
    """Seconds of a method per unit of `Work`, by non-negative least squares of relative errors."""
    known = (s for s in SCHEMES if (s.grid, s.bits) in method.pairs)
    scheme = next(known, Scheme(*method.pairs[0], 64).stored())
    options, rows = method.options(), []
    for outputs, width in SHAPES:
        stats = _statistics(inputs[width])
        weight = torch.randn(outputs, width, generator=generator) / width**0.5

        def work(weight: torch.Tensor = weight, stats: InputStats = stats) -> None:
            grid = rounding_of(scheme, torch.bfloat16, [weight])
            if method.rescale is not None:
                method.rescale([weight], stats, scheme, grid, options)
            method.quantize([weight], stats, scheme, grid, options)

        seconds = _fastest(work)
        rows.append([count / seconds for count in (outputs * width, outputs * width**2, width**3)])
    weights, crossed, cubed = map(float, nnls(rows, [1.0] * len(rows))[0])
    return Solving(weights=weights, crossed=crossed, cubed=cubed)
