"""Small artifacts for real engines, what they should predict, and how an engine is run."""

import json
import logging
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from quantkit.core import registry
from quantkit.core.facts import LinearFacts, ModelFacts
from quantkit.core.format import Format
from quantkit.core.grid import rounding_of
from quantkit.core.scheme import NESTED_SIZE, Scheme
from quantkit.grid.activation import input_scale, inputs_change
from quantkit.grid.dynamic8 import dynamic_book, nested_scales
from quantkit.grid.nearest import nearest
from quantkit.grid.normal4 import NF4
from quantkit.grid.qtensor import DoubleQuant, QTensor
from quantkit.model.open import open_model
from quantkit.model.opened import OpenModel

log = logging.getLogger(__name__)
ROOT = Path(__file__).parents[2]
TOKENS = [[2 + (7 * i + 31 * row) % 250 for i in range(24)] for row in range(2)]

QUIET = {
    "HF_HUB_OFFLINE": "1",
    "PYTHONSAFEPATH": "1",
    "TORCHDYNAMO_DISABLE": "1",  # GPTQModel's kernels would compile for a minute
    "VLLM_CPU_INT4_W4A8": "0",  # what the file says, also on processors with AMX
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}


@dataclass(frozen=True)
class Artifact:
    """What to write: a tiny model of `family`, its block linears in one scheme and format.

    Linears whose name ends in `skip` stay dense, those that end in a key of `other` get its scheme.
    """

    name: str
    format: str
    scheme: Scheme
    family: str = "llama"
    skip: str = ""
    dtype: str = "float16"
    other: Mapping[str, Scheme] = field(default_factory=dict)


@dataclass(frozen=True)
class Written:
    """A written artifact, and the fp32 logits of quantkit's own decode of its file."""

    folder: Path
    logits: torch.Tensor


@pytest.fixture(scope="session")
def measure(
    write_artifact: Callable[..., Written],
    run_script: Callable[[str, str, str], None],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., dict[str, float | str]]:
    """How far an engine's logits are from those of our own decode: {artifact: maximum}.

    A message instead of a number where the engine stops, or misses a tensor, or has one left over.
    `cases`: {name: (format, scheme, options of `write_artifact`, ...)}.
    """

    def run(
        engine: str, cases: Mapping[str, Any], *, environment: str = ""
    ) -> dict[str, float | str]:
        interpreter(environment or engine)  # skips before any work
        written = {name: write_artifact(name, *case[:2], **case[2]) for name, case in cases.items()}
        folder = tmp_path_factory.mktemp(engine)
        folders = {name: str(artifact.folder) for name, artifact in written.items()}
        job = {"engine": engine, "artifacts": folders, "tokens": TOKENS}
        (folder / "job.json").write_text(json.dumps(job))
        run_script(environment or engine, "predict.py", str(folder / "job.json"))
        found: dict[str, float | str] = {}
        for name in cases:
            answer = json.loads((folder / f"{name}.json").read_text())
            logits = load_file(folder / f"{name}.safetensors")["logits"]
            fault = answer["error"] or " ".join(answer.get("keys", ()))
            found[name] = fault or _distance(logits, written[name].logits)
            log.info("%s %-22s %s", engine, name, found[name])
        return found

    return run


def _distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    if found.shape[1] < expected.shape[1]:  # vLLM tells log-probabilities, of all but the last
        expected = expected.log_softmax(-1)[:, :-1]
    return (found - expected).abs().max().item()


@pytest.fixture(scope="session")
def run_script() -> Callable[[str, str, str], None]:
    """Run a script of this folder, with one argument, by the interpreter of an environment."""

    def run(environment: str, script: str, argument: str) -> None:
        done = subprocess.run(
            [interpreter(environment), str(Path(__file__).parent / script), argument],
            env=os.environ | QUIET,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        if done.returncode:
            pytest.fail(f"{script} ended with {done.returncode}:\n{done.stderr[-4000:]}")

    return run


@pytest.fixture(scope="session")
def engine_python() -> Callable[[str], str]:
    """The interpreter of an environment; skips the test where there is none."""
    return interpreter


def interpreter(environment: str) -> str:
    """The Python that has the engine; skips the test where there is none.

    QUANTKIT_ENGINE_PYTHON_<ENVIRONMENT> names it, else `make engines` has made it.
    """
    variable = f"QUANTKIT_ENGINE_PYTHON_{environment.upper()}"
    made = ROOT / ".engines" / environment / "bin" / "python"
    python = os.environ.get(variable, str(made))
    if not Path(python).exists():
        pytest.skip(f"no {environment} environment: run `make engines` or set {variable}")
    return python


@pytest.fixture(scope="session")
def write_artifact(
    tiny_checkpoint_cache: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Written]:
    """Write an `Artifact` (same arguments) with quantkit's formats, and predict with its decode.

    `int8_levels`: what the absolute maximum of a token's activations is divided by.
    """

    def write(*what: Any, int8_levels: float = 127.0, **options: Any) -> Written:
        artifact = Artifact(*what, **options)
        source = tiny_checkpoint_cache(artifact.family, dtype=artifact.dtype)
        output = registry.load("formats", artifact.format, "FORMAT")
        folder = tmp_path_factory.mktemp("artifact") / artifact.name
        folder.mkdir()
        _write(source, folder, output, artifact)
        return Written(folder, _own_logits(source, folder, output, int8_levels))

    return write


def _write(source: Path, folder: Path, output: Format, artifact: Artifact) -> None:
    for path in source.iterdir():
        if path.suffix != ".safetensors":
            (folder / path.name).write_bytes(path.read_bytes())
    linears = _linears(source)
    tensors = load_file(source / "model.safetensors")
    schemes = {}
    for name, linear in linears.items():
        if artifact.skip and name.endswith(artifact.skip):
            continue
        scheme = next(
            (s for end, s in artifact.other.items() if name.endswith(end)), artifact.scheme
        )
        fault = output.check(scheme, linear)
        assert fault is None, fault
        weight = tensors.pop(_stored(f"{name}.weight", tensors)).float()
        weight = weight.T if linear.transposed else weight
        qtensor = round_to_nearest(weight, scheme, getattr(torch, artifact.dtype))
        scales = qtensor.scales.float()
        signs_differ = bool((scales < 0).any()) and bool((scales > 0).any())
        assert signs_differ == (scheme.symmetric and scheme.grid == "int")
        for suffix, tensor in output.encode(qtensor, artifact.dtype).items():
            tensors[f"{name}.{suffix}"] = tensor.contiguous().clone()
        schemes[name] = scheme
    prefix = next(iter(linears)).partition(".0.")[0]
    skipped = (*(set(linears) - set(schemes)), "lm_head")
    facts = ModelFacts(schemes, skipped, "lm_head", artifact.dtype, prefix)
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = output.config(facts)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _own_logits(source: Path, folder: Path, output: Format, int8_levels: float) -> torch.Tensor:
    """fp32 logits of the plain model with the weights that `output` decodes from the file."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    tensors = load_file(folder / "model.safetensors")
    block = json.loads((folder / "config.json").read_text())["quantization_config"]
    for name, linear in _linears(source).items():
        scheme = output.parse(block)(name)
        if scheme is None:
            continue
        parts = {k.removeprefix(f"{name}."): v for k, v in tensors.items() if k.startswith(name)}
        qtensor = output.decode(parts, scheme, linear)
        weight = qtensor.dequantize()
        module = model.get_submodule(name)
        module.weight.data = weight.T.contiguous() if linear.transposed else weight
        change = inputs_change(qtensor)
        if scheme.activation == "int8-token":
            change = partial(int8_rounded, levels=int8_levels)
        if change is not None:
            module.register_forward_pre_hook(lambda _, args, change=change: change(args[0]))
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor(TOKENS)).logits.float()
    return logits


def _linears(source: Path) -> dict[str, LinearFacts]:
    """Facts of the linears inside the blocks."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.pytorch_utils import Conv1D

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(source))
    found = {}
    for name, module in model.named_modules():
        transposed = isinstance(module, Conv1D)
        if (isinstance(module, nn.Linear) or transposed) and name != "lm_head":
            rows, columns = module.weight.shape[::-1] if transposed else module.weight.shape
            found[name] = LinearFacts(name, rows, columns, transposed=transposed)
    return found


def _stored(name: str, tensors: dict[str, torch.Tensor]) -> str:
    return name if name in tensors else name.removeprefix("transformer.")


def int8_rounded(x: torch.Tensor, levels: float) -> torch.Tensor:
    scale = x.abs().amax(-1, keepdim=True) / levels
    return (x / scale).round().clamp(-128, 127) * scale


def round_to_nearest(weight: torch.Tensor, scheme: Scheme, dtype: torch.dtype) -> QTensor:
    """`weight` on the grid of `scheme`; symmetric scales are signed so that the extreme is exact.

    So about half of the symmetric scales are negative.
    """
    if scheme.grid == "nf4":
        return _nf4(weight, scheme)
    if scheme.grid != "int":
        return _floats(weight, scheme, dtype)
    outputs, inputs = weight.shape
    groups = weight.view(outputs, scheme.groups(inputs), -1)
    low, high = groups.amin(-1), groups.amax(-1)
    top = (1 << scheme.bits) - 1
    if scheme.symmetric:
        middle = 1 << (scheme.bits - 1)
        scales = (torch.where(high > -low, high, low) / -middle).to(dtype)
        zeros, offset = None, torch.full_like(low, middle)
    else:
        low, high = low.clamp(max=0), high.clamp(min=0)
        scales = ((high - low) / top).to(dtype)
        zeros = (-low / scales.float()).round().clamp(1, top).to(torch.uint8)
        offset = zeros.float()
    codes = (groups / scales.float()[..., None]).round() + offset[..., None]
    return QTensor(codes.clamp(0, top).to(torch.uint8).view(weight.shape), scales, zeros, scheme)


def _floats(weight: torch.Tensor, scheme: Scheme, dtype: torch.dtype) -> QTensor:
    """Rounded by the grid itself, of which other tests say what it does."""
    stored = getattr(torch, scheme.scale_dtype(str(dtype).removeprefix("torch.")))
    qtensor = nearest(weight, None, scheme, rounding_of(scheme, stored, [weight]))
    return replace(qtensor, input_scale=input_scale(scheme.activation, torch.tensor([4.0])))


def _nf4(weight: torch.Tensor, scheme: Scheme) -> QTensor:
    blocks = weight.reshape(-1, scheme.group_size or 64)
    absmax = blocks.abs().amax(-1)
    nested = None
    if scheme.double_quant:
        offset = absmax.mean()
        padded = nn.functional.pad(absmax - offset, (0, -absmax.numel() % NESTED_SIZE))
        outer = padded.view(-1, NESTED_SIZE).abs().amax(-1)
        spread = outer.repeat_interleave(NESTED_SIZE)[: absmax.numel()]
        distance = ((absmax - offset) / spread)[:, None] - dynamic_book()
        nested = DoubleQuant(distance.abs().argmin(-1).to(torch.uint8), outer, offset)
        absmax = nested_scales(nested)
    codes = ((blocks / absmax[:, None])[..., None] - NF4).abs().argmin(-1).to(torch.uint8)
    return QTensor(codes.view(weight.shape), absmax, None, scheme, nested)


def decompressed(
    folders: Mapping[str, Path], folder: Path, run_script: Callable[..., None]
) -> Iterator[tuple[str, OpenModel, dict[str, torch.Tensor]]]:
    """By name, each artifact and the weights that transformers makes of it, in both ways.

    The job and the weights lie in `folder`.
    """
    job = {name: str(path) for name, path in folders.items()}
    (folder / "job.json").write_text(json.dumps(job))
    run_script("transformers", "decompress.py", str(folder / "job.json"))
    for name, path in folders.items():
        model = open_model(path)
        for how in ("loaded", "dequantized"):
            yield name, model, load_file(folder / f"{name}-{how}.safetensors")
