"""What each engine takes of a GPU beside weights and cache; all of it can be overridden.

vLLM 0.33, SGLang 0.5.23 and transformers 5.23 sources. The overheads are what others measured:
CUDA contexts of 0.3 to 0.5 GiB, 0.2 to 1.8 GiB outside torch on one GPU, 0.5 to 0.7 GiB for each
NCCL communicator, 3.3 GiB for a first all-to-all of eight GPUs, 0.2 to 0.4 GiB of CUDA graphs
(vLLM issues 10511, 14447, 22897; NCCL issues 964, 1685).
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from quantkit.checkpoint.sizes import parse_size
from quantkit.core.errors import InputError
from quantkit.core.figure import Figure
from quantkit.core.gpu import Gpu
from quantkit.core.registry import nearest
from quantkit.core.serving import Degrees

GIB = 2**30
MIB = 2**20
SHARES = ("utilization", "slack")
COUNTED = ("chunk", "rows", "block")
"""Settings that count tokens or sequences, of which there is at least one."""
RESERVED = ("rows", "slack", "non_torch", "nccl", "all_to_all", "graphs")
"""Settings that `reserve` replaces."""
MOST = 2**24
ENGINES = ("vllm", "sglang", "transformers")


@dataclass(frozen=True)
class Settings:
    """What decides how much of a GPU is left; sizes in bytes.

    `utilization`: the part of all memory that the engine may take. `chunk`: tokens of a prefill
    step; `rows`: sequences that are sampled at once. `cuda_context`: what a
    process takes before all; `non_torch`: what lies outside torch's pool; `nccl`: of each
    communicator; `all_to_all`: of expert parallelism.
    `slack`: what the allocator wastes, as a part of the activations. `reserve`: a fixed number
    of bytes in place of activations, graphs and communicators (SGLang), 0 for none.
    """

    utilization: float = 1.0
    chunk: int = 0
    rows: int = 1
    block: int = 1
    cuda_context: int = GIB // 2
    non_torch: int = 0
    nccl: int = GIB * 7 // 10
    all_to_all: int = GIB * 33 // 10
    graphs: int = 0
    slack: float = 0.03
    reserve: int = 0

    def budget(self, memory: int) -> Figure:
        """What the engine may take of `memory` bytes."""
        rule = f"{self.utilization:g} of {memory} bytes (utilization)"
        return Figure("budget", int(memory * self.utilization), rule)

    def overheads(self, activations: Figure, degrees: Degrees) -> tuple[Figure, ...]:
        """Activations, and all that is neither weights nor cache."""
        context = Figure("CUDA context", self.cuda_context, "set: cuda_context")
        if self.reserve:
            rule = "set: reserve (activations, graphs and communicators together)"
            return context, Figure("reserve", self.reserve, rule)
        found = [activations]
        if self.slack:
            wasted = int(activations.bytes * self.slack)
            found.append(Figure("allocator", wasted, f"{self.slack:g} of the activations (slack)"))
        found += [context, Figure("outside torch", self.non_torch, "set: non_torch")]
        groups = (degrees.tensor > 1) + (degrees.pipeline > 1)
        if groups:
            rule = f"{groups} communicators of {self.nccl} bytes (nccl)"
            found.append(Figure("NCCL", groups * self.nccl, rule))
        if degrees.expert > 1:
            found.append(Figure("all-to-all", self.all_to_all, "set: all_to_all"))
        found.append(Figure("CUDA graphs", self.graphs, "set: graphs"))
        return tuple(figure for figure in found if figure.bytes)


def settings_of(
    engine: str, gpu: Gpu, degrees: Degrees, stated: Mapping[str, Any] | None = None
) -> Settings:
    """The engine's defaults on a GPU, with those that were stated in their place.

    Raises:
        InputError: no such engine or setting, a value out of range, or a setting that is ignored.
    """
    if engine not in ENGINES:
        raise InputError(
            f"plan has no rules for engine `{engine}`",
            why=f"known: {', '.join(ENGINES)}",
            hint=f"--engine {nearest(engine, ENGINES)}",
        )
    by_engine = {"vllm": _vllm, "sglang": _sglang, "transformers": _transformers}
    settings = by_engine[engine](gpu, degrees)
    settings = replace(
        settings, **{key: _value(key, value) for key, value in (stated or {}).items()}
    )
    if ignored := sorted(_ignored(engine, settings) & set(stated or ())):
        summed = settings.reserve and ignored[0] != "block"
        raise InputError(
            f"{engine} ignores the setting `{ignored[0]}`",
            why=f"`reserve`, {settings.reserve} bytes, stands in its place"
            if summed
            else "it computes prompts whole, and its cache has no pages",
            hint="--set reserve=0" if summed else "--engine vllm",
        )
    return settings


def _ignored(engine: str, settings: Settings) -> set[str]:
    """Settings that change nothing."""
    ignored = set(RESERVED) if settings.reserve else set()
    if engine == "transformers":
        ignored |= set(COUNTED)
    if engine == "sglang" and settings.reserve:
        ignored.add("chunk")
    return ignored


def _vllm(gpu: Gpu, _degrees: Degrees) -> Settings:
    """Server of vLLM: from 70 GiB on larger chunks, but on A100 and GB10; from 160 GiB twice so."""
    large = gpu.memory >= 70 * GIB and not gpu.name.startswith(("A100", "GB10"))
    huge = large and gpu.memory >= 160 * GIB
    return Settings(
        utilization=0.92,
        chunk=16384 if huge else 8192 if large else 2048,
        rows=1024 if large else 256,
        block=16,
        non_torch=GIB // 2,
        graphs=GIB * 4 // 10,
    )


def _sglang(gpu: Gpu, degrees: Degrees) -> Settings:
    """SGLang reserves a sum that grows with chunk, ranks and graphs; 10 GiB on large cards."""
    gib = gpu.memory / GIB
    chunk = 2048 if gib < 20 else 4096 if gib < 60 else 8192 if gib < 160 else 16384
    wide = degrees.tensor >= 4
    graph_rows = 8 if gib < 20 else (32, 160)[wide] if gib < 60 else (256, 512)[wide]
    ranks = degrees.tensor * degrees.pipeline
    mebibytes = 512 + 1.5 * max(chunk, 2048) + 1024 * ranks / 8 + 2 * graph_rows
    reserve = max(int(mebibytes * MIB), 10 * GIB if gib > 60 else 0)
    return Settings(chunk=chunk, rows=graph_rows, reserve=reserve)


def _transformers(_gpu: Gpu, _degrees: Degrees) -> Settings:
    """All of the GPU; prompts go through whole, and the cache grows as it is filled."""
    return Settings()


def _value(key: str, value: Any) -> Any:
    known = {field.name: field.default for field in fields(Settings)}
    if key not in known:
        raise InputError(
            f"`{key}` is not a setting of an engine",
            why=f"known: {', '.join(known)}",
            hint=f"--set {nearest(key, tuple(known))}={value}",
        )
    if key not in (*SHARES, *COUNTED):
        return 0 if str(value) == "0" else parse_size(value, f"--set {key}=")
    number = _number(str(value))
    least = {"utilization": 1e-9, "slack": 0}.get(key, 1)
    most = 1 if key in SHARES else MOST
    if least <= number <= most and (key in SHARES or number == int(number)):
        return number if key in SHARES else int(number)
    share = "a share, at most 1" if key == "slack" else "a share above 0, at most 1"
    example = {"utilization": 0.9, "slack": 0.03, "block": 16}.get(key, 256)
    raise InputError(
        f"`{key}` cannot be `{value}`",
        why=f"it takes {share if key in SHARES else f'a whole number from 1 to {MOST}'}",
        hint=f"--set {key}={example}",
    )


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return -1.0
