"""Check that this machine and this installation can run quantkit, and suggest fixes."""

import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from quantkit.core.manifest import DISTRIBUTION

NEEDED = ("torch", "transformers", "tokenizers", "huggingface_hub")
OPTIONAL = {
    "pyarrow": "parquet files as calibration text",
    "datasets": "hub datasets as calibration text",
    "gptqmodel": "loading gptq and awq in transformers",
    "bitsandbytes": "loading nf4 in transformers",
    "compressed-tensors": "loading compressed-tensors in transformers",
    "vllm": "serving",
    "lm-eval": "evaluation on tasks",
    "ray": "sweeps over several machines",
}
INSTRUCTIONS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "bf16")
GIGABYTE = 10**9
MEMORY_WANTED = 2 * GIGABYTE
DISK_WANTED = 5 * GIGABYTE


@dataclass(frozen=True)
class Finding:
    """Result of one check, with a hint for one that is not ok."""

    check: str
    ok: bool
    detail: str
    hint: str | None = None


def doctor() -> tuple[Finding, ...]:
    """All findings but those of GPUs; a missing optional package is ok."""
    return (
        _python(),
        *_needed(),
        *_clashes(),
        _processor(),
        _memory(),
        _disk(),
        *_optional(),
    )


def _python() -> Finding:
    return Finding("python", sys.version_info >= (3, 11), platform.python_version(), "Python 3.11")


def _needed() -> Iterator[Finding]:
    for name in NEEDED:
        version = _version(name)
        yield Finding(name, version is not None, version or "missing", f"pip install {name}")


def _optional() -> Iterator[Finding]:
    for name, purpose in OPTIONAL.items():
        yield Finding(name, ok=True, detail=_version(name) or f"not installed ({purpose})")


def _clashes() -> Iterator[Finding]:
    """Other distributions that install a command or a package called quantkit."""
    found = []
    for other in importlib.metadata.distributions():
        name = other.metadata["Name"] or ""
        commands = other.entry_points.select(group="console_scripts", name="quantkit")
        if name != DISTRIBUTION and (name == "quantkit" or commands):
            found.append(name)
    for name in sorted(set(found)):
        detail = f"{name} also installs `quantkit`; the one installed last runs"
        hint = f"pip uninstall {name}, then install {DISTRIBUTION} again"
        yield Finding("command", ok=False, detail=detail, hint=hint)
    if not found:
        yield Finding("command", ok=True, detail="no other distribution installs `quantkit`")


def _processor() -> Finding:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    flags: set[str] = set()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        lines = info.read_text(encoding="utf-8", errors="replace").splitlines()
        stated = (line.partition(":")[2] for line in lines if line.startswith(("flags", "Feat")))
        flags = set(next(stated, "").split())
    known = [name for name in INSTRUCTIONS if name in flags]
    detail = f"{cores} cores, {platform.machine()}" + "".join(f", {name}" for name in known)
    return Finding("processor", ok=True, detail=detail)


def _memory() -> Finding:
    info = Path("/proc/meminfo")
    if not info.is_file():
        return Finding("memory", ok=True, detail="unknown on this system")
    fields = dict(line.split(":", 1) for line in info.read_text(encoding="utf-8").splitlines())
    free = int(fields["MemAvailable"].split()[0]) * 1024
    total = int(fields["MemTotal"].split()[0]) * 1024
    detail = f"{free / GIGABYTE:.1f} GB free of {total / GIGABYTE:.1f}"
    return Finding("memory", free >= MEMORY_WANTED, detail, "close other programs")


def _disk() -> Finding:
    free = shutil.disk_usage(Path.cwd()).free
    detail = f"{free / GIGABYTE:.1f} GB free in this folder"
    return Finding("disk", free >= DISK_WANTED, detail, "use a folder on another disk")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
