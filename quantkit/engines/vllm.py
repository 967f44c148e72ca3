"""vLLM, on CUDA and with its CPU build.

The rules are those of all its kernels together. The CPU build has fewer: 4-bit weights, 8-bit
weights with 8-bit activations, and FP8 of channels; with AMX, in bf16, also of blocks and, from
ModelOpt's format, of tensors, whose activations stay as they are. For experts it has kernels on
processors with AMX only, where a softmax chooses them: 4 bits (in compressed-tensors symmetric in
groups of 64 or 128), and W8A8.
"""

from collections.abc import Mapping

from quantkit.core.engine import Engine
from quantkit.core.facts import EXPERTS, LinearFacts
from quantkit.core.scheme import Scheme

GROUPS = (32, 64, 128)
LEAST = (7, 5)
LEAST_OF = {"mxfp4": (8, 0)}
"""Grids whose kernels need more."""
LEAST_OF_MODELOPT = {"fp8": (8, 0), "mxfp8": (8, 0)}
"""Grids of which its loader of ModelOpt's format needs more."""
WEIGHTS_ON_AMD = (4, 8)
"""Bits of integers that kernels there have; Humming, which has the others, is CUDA's."""
BFLOAT16 = (8, 0)
ADA, HOPPER, BLACKWELL = (8, 9), (9, 0), (10, 0)
MICROSCALED = {"mxfp8": "fp8", "mxfp4": "fp4"}
"""Grids of weights whose activations it rounds, too, where there are kernels for the products."""
MX_ON_AMD = "gfx95"
NO_FLOAT16 = ("gemma2", "gemma3", "gemma3_text", "glm4")
"""Families that vLLM does not run in fp16."""

FORMATS = ("compressed-tensors", "gptq", "gptq-v2", "awq", "modelopt", "fp8")
"""Not bitsandbytes: vLLM has no loader for it since 0.32."""
METHODS = (
    *("auto-round", "auto_awq", "auto_gptq", "awq", "awq_marlin", "compressed-tensors"),
    *("deepseek_v4_fp8", "experts_int8", "fbgemm_fp8", "fp8", "fp_quant", "gpt_oss_mxfp4"),
    *("gptq", "gptq_marlin", "humming", "inc", "modelopt", "modelopt_fp4", "modelopt_mixed"),
    *("modelopt_mxfp8", "moe_wna16", "mxfp4", "quark", "torchao"),
)
MAMBA = ("falcon_mamba", "jamba", "mamba")
"""Model types whose Mamba layers it makes without any quantization (`MambaMixer`)."""
MIXERS = (".mamba.", ".mixer.")


def refuses(output: str, scheme: Scheme, linear: LinearFacts) -> str | None:
    """Why vLLM would not load a linear."""
    if linear.model_type in MAMBA and (fault := _mamba_fault(output, linear)):
        return fault
    if output in ("gptq", "gptq-v2", "awq"):
        return _packed_fault(output, scheme)
    if output != "compressed-tensors" and EXPERTS in linear.name:
        return (
            f"vLLM has not been seen to load experts in format `{output}`; "
            "try: --format compressed-tensors"
        )
    if scheme.group_size and scheme.rows != 1:
        return _block_fault(scheme.group_size, linear)
    return None


def _packed_fault(output: str, scheme: Scheme) -> str | None:
    """Why it would not load integers in a format of GPTQ or AWQ."""
    if output != "awq" and not scheme.symmetric:
        return "vLLM loads symmetric GPTQ only; try: --format compressed-tensors"
    if output != "awq" and scheme.bits not in (4, 8):
        return (
            f"vLLM loads GPTQ with 4 or 8 bits, not {scheme.bits}; try: --format compressed-tensors"
        )
    if scheme.group_size and scheme.group_size not in GROUPS:
        sizes = ", ".join(map(str, GROUPS))
        return f"vLLM loads {output} with groups of {sizes} or whole channels"
    return None


def _mamba_fault(output: str, linear: LinearFacts) -> str | None:
    if any(part in linear.name for part in MIXERS):
        return f"vLLM does not quantize the Mamba layers of {linear.model_type}"
    if output in ("gptq", "gptq-v2"):
        return f"vLLM's loader of {linear.model_type} stops at GPTQ's `g_idx`"
    return None


def _block_fault(size: int, linear: LinearFacts) -> str | None:
    """Why blocks do not fit: of linears that are merged, only the last one may have a cut block."""
    merged = linear.fused and linear.name != linear.fused[-1]
    for count, along, whole in (
        (linear.in_features, "inputs", True),
        (linear.out_features, "outputs", merged),
    ):
        if whole and count % size:
            return (
                f"vLLM requires whole blocks of {size} {along}, of which there are {count}; "
                "try: --recipe fp8"
            )
    return None


def refuses_slice(output: str, scheme: Scheme, whole: LinearFacts, part: LinearFacts) -> str | None:
    """Why vLLM would not load a rank's slice of a linear.

    A group must not lie on two ranks. Shapes that Marlin's tiles do not divide are padded (since
    0.32: `marlin_padded_nk`), but what is packed into one 32-bit word stays together.
    """
    if part == whole or scheme.grid == "nf4":
        return None
    inputs, group = part.in_features, scheme.group_size
    if group and inputs % group:
        return f"{inputs} inputs per rank are not a multiple of the group size {group}"
    if scheme.rows != 1 and group and part.out_features % group:
        return f"{part.out_features} outputs per rank are not whole blocks of {group}"
    packed, along = (part.out_features, "outputs") if output == "awq" else (inputs, "inputs")
    if scheme.grid == "int" and scheme.activation is None and packed * scheme.bits % 32:
        return f"{packed} {along} per rank of {scheme.bits} bits do not fill whole 32-bit words"
    return None


def refuses_mix(schemes: Mapping[str, Scheme | None]) -> str | None:
    """Why vLLM would not load linears together: it makes one of all the experts of a block."""
    seen: dict[str, Scheme | None] = {}
    for name, scheme in schemes.items():
        block, expert, _ = name.partition(EXPERTS)
        if expert and seen.setdefault(block, scheme) != scheme:
            return f"vLLM requires one scheme for all experts of a block, unlike in `{block}`"
    return None


def refuses_gpu(output: str, scheme: Scheme | None, capability: str) -> str | None:
    """Why vLLM has no kernel for a GPU (its kernels' get_min_capability; issue 54311 for SM100)."""
    if capability == "metal":
        return "vLLM does not run on Apple GPUs"
    if not capability[:1].isdigit():
        return _amd_fault(scheme, capability) if scheme else None
    number = _version(capability)
    more = LEAST_OF | (LEAST_OF_MODELOPT if output == "modelopt" else {})
    least = more.get(scheme.grid, LEAST) if scheme else LEAST
    if number < least:
        needed = ".".join(map(str, least))
        kind = f" for {scheme.label()}" if scheme and least != LEAST else ""
        return (
            f"vLLM requires compute capability {needed} or higher{kind}; this GPU has {capability}"
        )
    if scheme and scheme.activation == "int8-token" and number >= BLACKWELL:
        return (
            "vLLM's INT8 W8A8 fails on Blackwell "
            f"(compute capability {capability}); try: --recipe w8a16"
        )
    return None


def multiplies(scheme: Scheme, capability: str | None) -> str:
    """The numbers that are multiplied: its lists of kernels, of which the last are Marlin's.

    Those leave activations in 16 bits. vLLM 0.32 source, model_executor/kernels/linear.
    """
    stated = MICROSCALED.get(scheme.grid, scheme.products)
    if capability is None:
        return scheme.products
    if stated == "bf16" or not capability[:1].isdigit():
        return stated
    least = {"int8": LEAST, "fp8": ADA, "fp4": BLACKWELL}[stated]
    if scheme.grid == "mxfp8":
        least = BLACKWELL
    elif scheme.spread == "128x128":
        least = HOPPER
    return stated if _version(capability) >= least else "bf16"


def _amd_fault(scheme: Scheme, architecture: str) -> str | None:
    """Why vLLM has no kernel on AMD GPUs: its lists of kernels by platform."""
    native = scheme.grid in MICROSCALED and architecture.startswith(MX_ON_AMD)
    if scheme.grid == "nvfp4" or (scheme.grid in MICROSCALED and not native):
        return f"vLLM only emulates {scheme.label()} on {architecture}; try: --recipe w8a16"
    if scheme.grid == "fp8" and scheme.activation is None:
        return "vLLM has no kernel on AMD GPUs for FP8 with 16-bit activations; try: --recipe fp8"
    if scheme.grid == "int" and scheme.bits not in WEIGHTS_ON_AMD:
        return f"vLLM has no kernel on AMD GPUs for {scheme.bits}-bit weights; try: --bits 4"
    return None


def serves(dtype: str, model_type: str, capability: str | None) -> str:
    """The dtype that `--dtype auto` selects: 16 bits for fp32, no bf16 before Ampere.

    vLLM 0.32 source, config/model.py: `_resolve_auto_dtype`.
    """
    known = ["F32"] if model_type in NO_FLOAT16 else ["F16", "F32"]
    if capability is None or not capability[:1].isdigit() or _version(capability) >= BFLOAT16:
        known.insert(0, "BF16")
    return dtype if dtype in known and dtype != "F32" else known[0]


def _version(capability: str) -> tuple[int, ...]:
    return tuple(int(part) for part in capability.split("."))


def usage(_output: str) -> str:
    """How a folder is served."""
    return """\
```sh
vllm serve FOLDER
```"""


ENGINE = Engine(
    name="vllm",
    summary="vLLM",
    versions="vLLM 0.32 (CPU build, run), 0.33 (read)",
    formats=FORMATS,
    refuses=refuses,
    usage=usage,
    refuses_slice=refuses_slice,
    refuses_mix=refuses_mix,
    refuses_gpu=refuses_gpu,
    multiplies=multiplies,
    serves=serves,
    serve="vllm serve",
    methods=METHODS,
    kv_caches=("fp8-tensor",),
)
