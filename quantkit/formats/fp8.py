"""DeepSeek's FP8: e4m3 weights (O, K) with an fp32 factor for each block of 128 by 128.

The factors are called `weight_scale_inv`, and multiply nonetheless. Blocks at the edges are cut.
Activations are rounded at run time, with a scale for each 128 inputs of a token.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from quantkit.core.facts import Layout, LinearFacts, ModelFacts
from quantkit.core.format import PRODUCER, Format, is_own, parser, stored_tensor
from quantkit.core.scheme import Scheme

if TYPE_CHECKING:
    import torch

    from quantkit.grid.qtensor import QTensor

NAME = "fp8"
SCHEME = Scheme("fp8", 8, 128, activation="fp8-group128", rows=128)


def encode(qtensor: QTensor, _dtype: str = "float32") -> dict[str, torch.Tensor]:
    """weight: float8_e4m3fn (O, K); weight_scale_inv: fp32 (ceil(O / 128), ceil(K / 128))."""
    import torch

    return {
        "weight": qtensor.codes.view(torch.float8_e4m3fn),
        "weight_scale_inv": qtensor.scales.float(),
    }


def decode(tensors: Mapping[str, torch.Tensor], scheme: Scheme, linear: LinearFacts) -> QTensor:
    """The QTensor of `linear`.

    Raises:
        InputError: a tensor is missing, has another dtype or shape, or impossible values.
    """
    import torch

    from quantkit.grid.floats import require_numbers, require_scales, require_spanned
    from quantkit.grid.qtensor import QTensor

    expected = layout(scheme, linear, "")
    shapes = {suffix: shape for suffix, (_, shape) in expected.items()}
    weight = stored_tensor(tensors, linear, "weight", "float8_e4m3fn", shapes["weight"])
    name = "weight_scale_inv"
    scales = stored_tensor(tensors, linear, name, "float32", shapes[name])
    require_numbers(weight, f"{linear.name}.weight")
    require_scales(scales, f"{linear.name}.{name}")
    require_spanned(weight, scales, f"{linear.name}.{name}", scheme.block)
    return QTensor(weight.view(torch.uint8), scales, None, scheme)


def layout(scheme: Scheme, linear: LinearFacts, _dtype: str) -> Layout:
    """Dtypes and shapes of the tensors that `encode` returns."""
    outputs, inputs = linear.out_features, linear.in_features
    return {
        "weight": ("F8_E4M3", (outputs, inputs)),
        "weight_scale_inv": ("F32", (scheme.scale_rows(outputs), scheme.groups(inputs))),
    }


def config(model: ModelFacts) -> dict[str, Any]:
    """The block that transformers, vLLM and SGLang read.

    Raises:
        RefusedError: there are several schemes.
    """
    model.one_scheme(NAME)
    return {
        "quant_method": NAME,
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "weight_block_size": [SCHEME.rows, SCHEME.group_size],
        "modules_to_not_convert": list(model.unquantized),
        "producer": PRODUCER,
    }


def _rules(block: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(block["modules_to_not_convert"])


def _scheme_of(dense: frozenset[str], name: str) -> Scheme | None:
    return None if name in dense else SCHEME


def check(scheme: Scheme, linear: LinearFacts) -> str | None:
    """Why the layout cannot hold this linear; None if it can."""
    if scheme != SCHEME:
        known = SCHEME.label()
        return f"format {NAME} stores {known} only, not {scheme.label()}; try: --recipe fp8-block"
    if linear.transposed:
        return f"format {NAME} cannot store GPT-2's transposed Conv1D weights; try: --format gptq"
    return None


FORMAT = Format(
    name=NAME,
    summary="DeepSeek's FP8 in blocks of 128 by 128, which transformers, vLLM and SGLang read",
    quant_method=NAME,
    encode=encode,
    decode=decode,
    layout=layout,
    config=config,
    parse=parser(_rules, _scheme_of),
    check=check,
    # others leave it to the files which linears are dense: they are read as dense weights
    matches=partial(is_own, NAME),
)
