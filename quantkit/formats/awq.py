"""AWQ's checkpoint layout: 4 bits, GEMM packing (AutoAWQ; AWQ, arXiv 2306.00978)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from quantkit.core.errors import InputError, RefusedError
from quantkit.core.facts import STORED, Layout, LinearFacts, ModelFacts
from quantkit.core.format import BLOCK, Format, parser, stored_tensor
from quantkit.core.patterns import Patterns
from quantkit.core.scheme import Scheme

if TYPE_CHECKING:
    import torch

    from quantkit.grid.qtensor import QTensor

BITS = 4
SYMMETRIC_ZERO = 8


def encode(qtensor: QTensor, _dtype: str = "float32") -> dict[str, torch.Tensor]:
    """The tensors of one linear, with codes and zeros packed along the outputs in AWQ's order.

    qweight: int32 (K, O/8). qzeros: int32 (G, O/8), with zero points as they are, 8 if symmetric.
    scales: (G, O) in the dtype of `qtensor.scales`. `qtensor` is not modified.
    """
    import torch

    from quantkit.grid.packing import pack_awq

    zeros = qtensor.zeros
    if zeros is None:
        zeros = torch.full_like(qtensor.scales, SYMMETRIC_ZERO, dtype=torch.uint8)
    return {
        "qweight": pack_awq(qtensor.codes),
        "qzeros": pack_awq(zeros),
        "scales": qtensor.scales.T.contiguous(),
    }


def decode(tensors: Mapping[str, torch.Tensor], scheme: Scheme, linear: LinearFacts) -> QTensor:
    """The QTensor of `linear`: codes uint8 (O, K), scales (O, G), zeros uint8 (O, G) or None.

    `scheme` says whether the linear is symmetric; AWQ's config block cannot.

    Raises:
        InputError: a tensor is missing or has another dtype or shape, or a symmetric scheme has
            zero points other than 8.
    """
    from quantkit.grid.packing import unpack_awq
    from quantkit.grid.qtensor import QTensor

    shapes = {suffix: shape for suffix, (_, shape) in layout(scheme, linear, "").items()}
    qweight = stored_tensor(tensors, linear, "qweight", "int32", shapes["qweight"])
    qzeros = stored_tensor(tensors, linear, "qzeros", "int32", shapes["qzeros"])
    floats = "float16 bfloat16 float32"
    scales = stored_tensor(tensors, linear, "scales", floats, shapes["scales"])
    zeros = unpack_awq(qzeros)
    if scheme.symmetric and bool((zeros != SYMMETRIC_ZERO).any()):
        raise InputError(f"`{linear.name}.qzeros` contains values other than {SYMMETRIC_ZERO}")
    kept = None if scheme.symmetric else zeros
    return QTensor(unpack_awq(qweight), scales.T.contiguous(), kept, scheme)


def layout(scheme: Scheme, linear: LinearFacts, dtype: str) -> Layout:
    """Dtypes and shapes of the tensors that `encode` returns; a model of `dtype`."""
    outputs, inputs = linear.out_features, linear.in_features
    groups = scheme.groups(inputs)
    return {
        "qweight": ("I32", (inputs, outputs // 8)),
        "qzeros": ("I32", (groups, outputs // 8)),
        "scales": (STORED[scheme.scale_dtype(dtype)], (groups, outputs)),
    }


def config(model: ModelFacts) -> dict[str, Any]:
    """The block that transformers, GPTQModel, vLLM and SGLang read.

    Two fields name the dense linears, by full name. vLLM matches substrings: `mlp.gate` would also
    match `mlp.gate_proj`. GPTQModel reads only the negative rules of `dynamic`; without them it
    runs the dense linears with random weights and reports no error.
    """
    scheme = model.one_scheme("awq")
    rules = (name.replace(".", r"\.") for name in model.dense)
    return {
        "quant_method": "awq",
        "bits": scheme.bits,
        "group_size": scheme.group_size or -1,
        "zero_point": True,
        "version": "gemm",
        "modules_to_not_convert": list(model.unquantized),
        "dynamic": {f"-:^{rule}$": {} for rule in rules},
    }


def _rules(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], Patterns]:
    """A block, and the patterns of what it leaves dense."""
    dense = [rule[2:] for rule in config.get("dynamic") or () if rule.startswith("-:")]
    return config, Patterns(dense, BLOCK)


def _scheme_of(rules: tuple[Mapping[str, Any], Patterns], name: str) -> Scheme | None:
    """The scheme of linear `name`, None if it is dense; also reads AutoAWQ's old field names.

    Raises:
        RefusedError: the layout is not GEMM, or not 4 bits with zero points.
        InputError: the group size is not a positive integer or -1.
    """
    config, dense = rules
    version = str(config.get("version") or config.get("format") or "gemm").lower()
    bits = config.get("bits", config.get("w_bit"))
    if version != "gemm" or bits != BITS or not config.get("zero_point", True):
        raise RefusedError(
            f"AWQ layout `{version}` with {bits} bits and zero_point "
            f"{config.get('zero_point', True)} is not supported",
            why="supported: gemm, 4 bits, zero_point true",
        )
    in_block = any(part.isdigit() for part in name.split("."))
    skipped = config.get("modules_to_not_convert") or ()
    if not in_block or any(f".{part}." in f".{name}." for part in skipped):
        return None
    if dense.first(name) is not None:
        return None
    size = config.get("group_size", config.get("q_group_size"))
    if not isinstance(size, int) or not (size > 0 or size == -1):
        raise InputError(
            f"the quantization config has group_size {size!r}; expected a positive integer or -1"
        )
    # A symmetric weight is stored with zero points of 8: reading it as asymmetric loses nothing.
    return Scheme("int", BITS, None if size == -1 else size, symmetric=False)


parse = parser(_rules, _scheme_of)


def check(scheme: Scheme, linear: LinearFacts) -> str | None:
    """Why the layout, or every engine's kernel for it, cannot hold this linear; None if it can."""
    fault = f"format awq stores 4-bit integer weights, not {scheme.label()}"
    if scheme.grid != "int" or scheme.activation:
        return fault
    if scheme.bits != BITS:  # a grid that integers only store has no other widths
        return fault if scheme.rounded_to else f"{fault}; try: --bits 4"
    if linear.transposed:
        return "format awq cannot store GPT-2's transposed Conv1D weights; try: --format gptq"
    inputs, outputs = linear.in_features, linear.out_features
    if inputs % 32 or outputs % 32:
        return (
            f"format awq requires multiples of 32, not {inputs} inputs and {outputs} outputs; "
            "try: --format compressed-tensors"
        )
    if scheme.group_size and (scheme.group_size < 32 or inputs % scheme.group_size):
        return f"format awq requires a group size of at least 32 that divides {inputs} inputs"
    return None


FORMAT = Format(
    name="awq",
    summary="AWQ GEMM: 4 bits, symmetric and asymmetric",
    quant_method="awq",
    encode=encode,
    decode=decode,
    layout=layout,
    config=config,
    parse=parse,
    check=check,
    matches=lambda block: block.get("quant_method") == "awq",
)
