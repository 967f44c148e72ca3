"""SGLang on CUDA. The rules come from its source; none were tested by running it."""

from quantkit.core.engine import Engine
from quantkit.core.facts import LinearFacts
from quantkit.core.scheme import Scheme

GROUPS = (32, 64, 128)
MARLIN_OUTPUTS, MARLIN_INPUTS = 64, 128
LEAST = (7, 5)
MARLIN_CAPABILITY = (8, 0)
KERNELS = {"int8": LEAST, "fp8": (8, 9), "fp4": (10, 0)}
"""Compute capability from which it multiplies in these numbers; before, in 16 bits."""
BLOCK = 128
GRIDS = ("int", "nf4", "fp8", "nvfp4")
"""It has no linears in MXFP4 and MXFP8."""


def refuses(output: str, scheme: Scheme, linear: LinearFacts) -> str | None:
    """Why SGLang would not load `linear`."""
    if linear.transposed:
        return "SGLang does not support quantized Conv1D; try: remove it from the target engines"
    if scheme.grid not in GRIDS:
        return f"SGLang has no kernel for linears in {scheme.label()}; try: --recipe nvfp4"
    if scheme.rows != 1 and scheme.group_size:
        return _block_fault(linear)
    return _integer_fault(output, scheme) if scheme.grid == "int" else None


def _integer_fault(output: str, scheme: Scheme) -> str | None:
    """Why it has no kernel for integers."""
    if output in ("gptq", "gptq-v2") and not scheme.symmetric:
        return "SGLang loads symmetric GPTQ only; try: --format compressed-tensors"
    if scheme.bits not in (4, 8):
        return f"SGLang has kernels for 4 and 8 bits, not {scheme.bits}; try: --bits 4"
    if scheme.group_size and scheme.group_size not in GROUPS:
        sizes = ", ".join(map(str, GROUPS))
        return f"SGLang loads {output} with groups of {sizes} or whole channels"
    return None


def _block_fault(linear: LinearFacts) -> str | None:
    """Why blocks do not fit: of linears that are merged, only the last one may have a cut block."""
    merged = linear.fused and linear.name != linear.fused[-1]
    if linear.in_features % BLOCK or (merged and linear.out_features % BLOCK):
        size = f"{linear.out_features} x {linear.in_features}"
        return f"SGLang requires whole blocks of {BLOCK}, unlike {size}; try: --recipe fp8"
    return None


def refuses_slice(output: str, scheme: Scheme, whole: LinearFacts, part: LinearFacts) -> str | None:
    """Why SGLang would not load a rank's slice: Marlin's tiles, which it does not pad."""
    if part == whole or (scheme.activation and scheme.group_size is None):
        return None
    if output == "bitsandbytes":
        return "SGLang does not split packed bitsandbytes weights"
    fault = _cut_fault(scheme, part)
    if fault or output == "awq" or scheme.activation or scheme.rows != 1:
        return fault  # for AWQ it falls back to AWQ's own kernel, the others have no tiles
    outputs, inputs = part.out_features, part.in_features
    if outputs % MARLIN_OUTPUTS or inputs % MARLIN_INPUTS:
        return (
            f"a rank's {outputs} x {inputs} is not a multiple of Marlin's tile, "
            f"{MARLIN_OUTPUTS} x {MARLIN_INPUTS}"
        )
    return None


def _cut_fault(scheme: Scheme, part: LinearFacts) -> str | None:
    """Why a group or block of weights would lie on two ranks."""
    outputs, inputs, group = part.out_features, part.in_features, scheme.group_size
    if group and inputs % group:
        return f"{inputs} inputs per rank are not a multiple of the group size {group}"
    if group and scheme.rows != 1 and outputs % group:
        return f"{outputs} outputs per rank are not whole blocks of {group}"
    return None


def refuses_gpu(output: str, scheme: Scheme | None, capability: str) -> str | None:
    """Why SGLang has no kernel for a GPU."""
    if capability == "metal":
        return "SGLang does not run on Apple GPUs"
    if not capability[:1].isdigit():
        return "SGLang does not load bitsandbytes on AMD GPUs" if output == "bitsandbytes" else None
    number = tuple(int(part) for part in capability.split("."))
    if number < LEAST:
        return f"SGLang requires compute capability 7.5 or higher; this GPU has {capability}"
    packed = scheme is not None and (
        scheme.grid == "nvfp4" or (scheme.grid == "int" and scheme.activation is None)
    )
    if packed and number < MARLIN_CAPABILITY:
        return "SGLang's Marlin kernels require compute capability 8.0 or higher"
    return None


def multiplies(scheme: Scheme, capability: str | None) -> str:
    """The numbers that are multiplied: FP8 and FP4 in 16 bits where the GPU has no cores for it."""
    stated = scheme.products
    if capability is None or stated == "bf16":
        return stated
    if not capability[:1].isdigit():
        return "bf16" if stated == "fp4" else stated
    number = tuple(int(part) for part in capability.split("."))
    return stated if number >= KERNELS[stated] else "bf16"


def serves(dtype: str, model_type: str, _capability: str | None) -> str:
    """The dtype that `--dtype auto` selects: fp16 for fp32, bf16 for Gemma."""
    if dtype != "F32":
        return dtype
    return "BF16" if model_type.startswith("gemma") else "F16"


def usage(_output: str) -> str:
    """How a folder is served."""
    return """\
```sh
python -m sglang.launch_server --model-path FOLDER
```"""


ENGINE = Engine(
    name="sglang",
    summary="SGLang",
    versions="SGLang 0.5.23 (read)",
    formats=("compressed-tensors", "gptq", "gptq-v2", "awq", "bitsandbytes"),
    refuses=refuses,
    usage=usage,
    refuses_slice=refuses_slice,
    refuses_gpu=refuses_gpu,
    multiplies=multiplies,
    serves=serves,
    serve="python -m sglang.launch_server --model-path",
)
