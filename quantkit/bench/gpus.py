"""The GPUs of this machine as `doctor` states them, and the kernels that run on them."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import torch

from quantkit.bench.kernel import WeightFacts, kernels
from quantkit.bench.machine import driver
from quantkit.core.scheme import Scheme
from quantkit.grid.kernel import refusal
from quantkit.pipeline.doctor import GIGABYTE, Finding

SCHEMES = (
    Scheme("int", 4, 128),
    Scheme("int", 8, None),
    Scheme("int", 8, 128),
    Scheme("int", 8, None, activation="int8-token"),
    Scheme("nf4", 4, 64),
)
WIDTH = 4096
"""Inputs and outputs of the weight for which kernels are named; all take it."""


@dataclass(frozen=True)
class GpuFacts:
    """One GPU: CUDA's compute capability, and bytes of memory.

    `free` is None if CUDA refuses to tell, as it does of a GPU that another program holds alone.
    """

    name: str
    capability: tuple[int, int]
    total: int
    free: int | None


@dataclass(frozen=True)
class GpuMachine:
    """What decides on the kernels: the GPUs, NVIDIA's driver, and whether Triton is installed."""

    gpus: tuple[GpuFacts, ...]
    driver: str | None
    triton: bool


def gpu_machine() -> GpuMachine:
    """The facts of this machine."""
    found = []
    for i in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(i)
        capability = (properties.major, properties.minor)
        found.append(GpuFacts(properties.name, capability, properties.total_memory, _free(i)))
    return GpuMachine(tuple(found), driver(), find_spec("triton") is not None)


def _free(index: int) -> int | None:
    try:
        free: int = torch.cuda.mem_get_info(index)[0]
    except RuntimeError:
        return None
    return free


def gpu_findings(machine: GpuMachine) -> tuple[Finding, ...]:
    """A finding for each GPU, then one for the kernels of each compute capability."""
    if not machine.gpus:
        loaded = f", though NVIDIA's driver {machine.driver} is loaded" if machine.driver else ""
        detail = f"torch finds no GPU{loaded}; quantkit runs on the CPU"
        return (Finding("gpu", ok=True, detail=detail),)
    kinds = dict.fromkeys(gpu.capability for gpu in machine.gpus)
    return (
        *(_gpu(i, gpu, machine.driver) for i, gpu in enumerate(machine.gpus)),
        *(_kernels(capability, triton=machine.triton) for capability in kinds),
    )


def _gpu(index: int, gpu: GpuFacts, driver: str | None) -> Finding:
    known = [gpu.name, f"driver {driver or 'unknown'}", _stated(gpu.capability)]
    total = f"{gpu.total / GIGABYTE:.1f}"
    if gpu.free is None:
        detail = ", ".join([*known, f"{total} GB, which CUDA does not give to this program"])
        hint = "end the program that holds the GPU (nvidia-smi names it), or --device cpu"
        return Finding(f"gpu {index}", ok=False, detail=detail, hint=hint)
    detail = ", ".join([*known, f"{gpu.free / GIGABYTE:.1f} GB free of {total}"])
    return Finding(f"gpu {index}", ok=True, detail=detail)


def _kernels(capability: tuple[int, int], *, triton: bool) -> Finding:
    """What quantizes there, and what multiplies in `eval --speed`, for weights of 16-bit models."""
    why = refusal(capability, triton=triton)
    rounding = f"torch's operators ({why})" if why else "Triton"
    found = [f"GPTQ and scales: {rounding}"]
    for scheme in SCHEMES:
        facts = WeightFacts(scheme, WIDTH, WIDTH, torch.bfloat16, "cuda", capability)
        names = [kernel.name for kernel in kernels() if kernel.refuses(facts) is None]
        found.append(f"{scheme.label()}: {_listed(names)}")
    return Finding("kernels", ok=True, detail=f"{_stated(capability)}: {'; '.join(found)}")


def _stated(capability: tuple[int, int]) -> str:
    return f"compute capability {capability[0]}.{capability[1]}"


def _listed(names: Sequence[str]) -> str:
    return " or ".join(names) or "none"
