"""ModelOpt's layout of FP8, MXFP8 and NVFP4 linears (NVIDIA; TensorRT-LLM, vLLM, SGLang).

`weight` holds e4m3 codes (O, K), or uint8 (O, K/2) with two e2m1 codes a byte. `weight_scale` is
fp32, of a tensor without dimensions or of channels (O,); uint8 exponents (O, K/32) in MXFP8; e4m3
(O, K/16) in NVFP4, with a factor of them all, `weight_scale_2`, where compressed-tensors has its
reciprocal. `input_scale` is the static scale of inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any

from quantkit.core.errors import RefusedError
from quantkit.core.facts import Layout, LinearFacts, ModelFacts
from quantkit.core.format import PRODUCER, Format, is_own, parser, stored_tensor
from quantkit.core.scheme import Scheme

if TYPE_CHECKING:
    import torch

    from quantkit.grid.qtensor import QTensor

NAME = "modelopt"
ALGORITHMS = {
    "FP8": Scheme("fp8", 8, None, activation="fp8-tensor", rows=None),
    "FP8_PER_CHANNEL_PER_TOKEN": Scheme("fp8", 8, None, activation="fp8-token"),
    "MXFP8": Scheme("mxfp8", 8, 32),
    "NVFP4": Scheme("nvfp4", 4, 16, activation="nvfp4"),
    "W4A16_NVFP4": Scheme("nvfp4", 4, 16),
}
"""`quant_algo` of a config block -> the scheme of all quantized linears."""
SCALES = {"fp8": "F32", "mxfp8": "U8", "nvfp4": "F8_E4M3"}
DTYPES = {"F32": "float32", "U8": "uint8", "F8_E4M3": "float8_e4m3fn"}


def encode(qtensor: QTensor, _dtype: str = "float32") -> dict[str, torch.Tensor]:
    """The tensors of one linear, as in the text above; `qtensor` is not modified."""
    import torch

    from quantkit.grid.packing import pack_pairs

    codes, scheme, scales = qtensor.codes, qtensor.scheme, qtensor.scales
    if scheme.bits == 4:
        out = {"weight": pack_pairs(codes)}
    else:
        out = {"weight": codes.view(torch.float8_e4m3fn)}
    scales = scales.float() if scheme.grid == "fp8" else scales
    out["weight_scale"] = scales.reshape(_scale_shape(scheme, *codes.shape))
    if qtensor.global_scale is not None:
        out["weight_scale_2"] = (1 / qtensor.global_scale).reshape(())
    if qtensor.input_scale is not None:
        scale = qtensor.input_scale
        out["input_scale"] = (1 / scale if scheme.grid == "nvfp4" else scale).reshape(())
    return out


def decode(tensors: Mapping[str, torch.Tensor], scheme: Scheme, linear: LinearFacts) -> QTensor:
    """The QTensor of `linear`: codes uint8 (O, K), scales (rows of scales, G) as stored.

    Raises:
        InputError: a tensor is missing, has another dtype or shape, or impossible values.
    """
    import torch

    from quantkit.grid.floats import require_numbers, require_scales, require_spanned
    from quantkit.grid.packing import unpack_pairs
    from quantkit.grid.qtensor import QTensor

    expected = layout(scheme, linear, "")

    def tensor(name: str) -> torch.Tensor:
        dtype, shape = expected[name]
        return stored_tensor(tensors, linear, name, DTYPES[dtype], shape)

    def scale(name: str) -> torch.Tensor:
        found, whole = tensor(name), name != "weight_scale"
        require_scales(found, f"{linear.name}.{name}", positive=whole)
        return found

    weight, scales = tensor("weight"), scale("weight_scale")
    if scheme.bits == 4:
        codes = unpack_pairs(weight)
    else:
        require_numbers(weight, f"{linear.name}.weight")
        if scheme.grid == "fp8":
            require_spanned(weight, scales, f"{linear.name}.weight_scale")
        codes = weight.view(torch.uint8)
    counts = scheme.scale_rows(linear.out_features), scheme.groups(linear.in_features)
    inputs = scale("input_scale").reshape(1) if "input_scale" in expected else None
    nested = scheme.grid == "nvfp4"
    return QTensor(
        codes,
        scales.reshape(counts),
        None,
        scheme,
        global_scale=1 / scale("weight_scale_2").reshape(1) if nested else None,
        input_scale=1 / inputs if inputs is not None and nested else inputs,
    )


def layout(scheme: Scheme, linear: LinearFacts, _dtype: str) -> Layout:
    """Dtypes and shapes of the tensors that `encode` returns."""
    outputs, inputs = linear.out_features, linear.in_features
    codes = ("U8", (outputs, inputs // 2)) if scheme.bits == 4 else ("F8_E4M3", (outputs, inputs))
    scales = (SCALES[scheme.grid], _scale_shape(scheme, outputs, inputs))
    found: Layout = {"weight": codes, "weight_scale": scales}
    if scheme.grid == "nvfp4":
        found["weight_scale_2"] = ("F32", ())
    if scheme.activation in ("fp8-tensor", "nvfp4"):
        found["input_scale"] = ("F32", ())
    return found


def _scale_shape(scheme: Scheme, outputs: int, inputs: int) -> tuple[int, ...]:
    if scheme.rows is None:
        return ()
    return (outputs,) if scheme.group_size is None else (outputs, scheme.groups(inputs))


def config(model: ModelFacts) -> dict[str, Any]:
    """The block that vLLM and SGLang read.

    Raises:
        RefusedError: there are several schemes.
    """
    scheme = model.one_scheme(NAME)
    algorithm = next(name for name, known in ALGORITHMS.items() if known == scheme)
    sizes = {"group_size": scheme.group_size} if scheme.group_size else {}
    return {
        "quant_method": NAME,
        "quant_algo": algorithm,
        **sizes,
        "kv_cache_quant_algo": None,
        "ignore": list(model.unquantized),
        "producer": PRODUCER,
    }


def _rules(block: Mapping[str, Any]) -> tuple[Scheme, tuple[str, ...]]:
    algorithm = block.get("quant_algo")
    if algorithm not in ALGORITHMS:
        raise RefusedError(f"ModelOpt's `{algorithm}` is not supported", hint="use the bf16 model")
    return ALGORITHMS[str(algorithm)], tuple(block.get("ignore") or ())


def _scheme_of(rules: tuple[Scheme, tuple[str, ...]], name: str) -> Scheme | None:
    scheme, ignored = rules
    return None if any(fnmatchcase(name, pattern) for pattern in ignored) else scheme


def check(scheme: Scheme, linear: LinearFacts) -> str | None:
    """Why the layout cannot hold this linear; None if it can."""
    if scheme not in ALGORITHMS.values():
        known = ", ".join(each.label() for each in ALGORITHMS.values())
        return f"format {NAME} stores {known}, not {scheme.label()}; try: --recipe nvfp4"
    if linear.transposed:
        return f"format {NAME} cannot store GPT-2's transposed Conv1D weights; try: --format gptq"
    if scheme.group_size and linear.in_features % scheme.group_size:
        return f"groups of {scheme.group_size} do not divide {linear.in_features} inputs"
    return None


FORMAT = Format(
    name=NAME,
    summary="ModelOpt: FP8, MXFP8 and NVFP4, one scheme for all linears",
    quant_method=NAME,
    encode=encode,
    decode=decode,
    layout=layout,
    config=config,
    parse=parser(_rules, _scheme_of),
    check=check,
    # others' factors of scales have no exact reciprocals: they are read as dense weights
    matches=partial(is_own, NAME),
)
