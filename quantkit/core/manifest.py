"""The content of `quantkit.json`: how an artifact was made, verified and measured."""

import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from quantkit.core.version import __version__

SCHEMA_VERSION = 1
FILE_NAME = "quantkit.json"
DISTRIBUTION = "quantkit-deploy"


@dataclass(frozen=True)
class Manifest:
    """All inputs and results of the run that made an artifact, without host, user or path.

    `engines` maps each known engine to the reason why it does not load the artifact, None if it
    does. `bits_per_weight` counts all stored tensors, including embeddings and norms;
    `quantized_bits_per_weight` the quantized linears with their scales and zero points, None
    without any; `linear_share` is the share of the linear weights in the blocks that they are.
    `expert_tokens` are the calibration tokens that were sent to each expert, by the module that
    holds those of a layer.
    `measured` has seconds and memory, `planned` their forecast. Only these two differ between two
    runs of the same inputs.
    """

    source: Mapping[str, Any]
    recipe: Mapping[str, Any]
    format: str
    calibration: Mapping[str, Any] | None
    modules: tuple[Mapping[str, Any], ...]
    tensors: Mapping[str, str]
    side_files: Mapping[str, str]
    bytes: int
    bits_per_weight: float
    quantized_bits_per_weight: float | None
    evaluation: Mapping[str, Any] | None
    engines: Mapping[str, str | None]
    remarks: tuple[str, ...]
    environment: Mapping[str, str]
    planned: Mapping[str, float]
    measured: Mapping[str, Any]
    linear_share: float | None = None
    expert_tokens: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def remarked(self, remark: str) -> "Manifest":
        """The manifest with one more remark."""
        return replace(self, remarks=(*self.remarks, remark))

    def to_dict(self) -> dict[str, Any]:
        """The manifest as JSON; `schema_version` comes first."""
        return {"schema_version": SCHEMA_VERSION, "quantkit": __version__, **asdict(self)}


def bits_text(quantized: float | None, whole: float) -> str:
    """Stored bits per weight as text: of the quantized linears if known, and of the whole model."""
    if quantized is None:
        return f"{whole:.2f} bits a weight over the whole model"
    linears = f"{quantized:.2f} bits a weight in the quantized linears"
    return f"{linears}, {whole:.2f} over the whole model"


def environment(device: str) -> dict[str, str]:
    """What the bytes of an artifact may depend on: versions of packages, machine and `device`."""
    found = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "device": device,
    }
    for package in ("torch", "transformers", "tokenizers", "safetensors"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def schemes_of(manifest: Mapping[str, Any]) -> list[str]:
    """Short names of what linears, keys and values have become, from a manifest's `to_dict()`."""
    linears = sorted({str(module.get("scheme")) for module in manifest.get("modules") or ()})
    cache = (manifest.get("recipe") or {}).get("kv_cache")
    return [*linears, f"KV cache {cache}"] if cache else linears
