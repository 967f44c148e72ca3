"""Activations as the kernels of serving engines round them at run time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch

from quantkit.core.scheme import Activation
from quantkit.grid.minifloat import EIGHT, FOUR, MiniFloat
from quantkit.grid.qtensor import QTensor
from quantkit.grid.scale_stores import PowerScales

LEAST = 1e-10
"""Of a token's largest magnitude: no 0 / 0 where a token is zeros."""
GROUP, BLOCK = 16, 128
"""Inputs of a token that share a scale: in NVFP4, and beside weights in blocks of 128 by 128."""
STATIC: Mapping[Activation, float] = {
    "fp8-tensor": 1 / EIGHT.largest,
    "nvfp4": EIGHT.largest * FOUR.largest,
}
"""Those with a scale in the file: by the largest magnitude times this, or this divided by it."""


def change_of(
    activation: Activation | None, input_scale: torch.Tensor | None
) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """What the inputs (.., in_features) of a linear go through, None for nothing.

    Shape and dtype stay. `input_scale` is that of the linear's QTensor.
    """
    if activation is None:
        return None
    if input_scale is None:
        return TOKENS[activation]
    return partial(SCALED[activation], scale=input_scale)


def inputs_change(qtensor: QTensor) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """`change_of` the inputs of a quantized linear."""
    return change_of(qtensor.scheme.activation, qtensor.input_scale)


def input_scale(activation: Activation | None, absmax: torch.Tensor) -> torch.Tensor | None:
    """fp32 (1,): the scale that is stored for inputs of these largest magnitudes (in_features,).

    None where kernels find it by themselves. That of NVFP4 divides, as compressed-tensors has it,
    and is the next lower power of two.
    """
    if activation is None or activation not in STATIC:
        return None
    largest = absmax.amax().float().clamp(min=LEAST).reshape(1)
    factor = STATIC[activation]
    if activation == "nvfp4":  # a power of two: so is its reciprocal, which ModelOpt stores
        return PowerScales.power(torch.frexp(factor / largest).exponent - 1)
    return largest * factor


def int8_per_token(x: torch.Tensor) -> torch.Tensor:
    """Copy of `x` (..., channels), rounded to 8 bits with one symmetric scale per token.

    Per-token quantization of SmoothQuant (arXiv 2211.10438, section 2) with scale absmax / 127. The
    computation is in fp32, as in vLLM's W8A8 kernels; the result has the dtype of `x`.
    """
    # vLLM divides by 127. compressed-tensors in transformers divides by 127.5, so that the same
    # checkpoint gives slightly different logits there.
    values = x.float()
    scale = values.abs().amax(-1, keepdim=True).clamp_min_(LEAST) / 127
    return (values / scale).round_().mul_(scale).to(x.dtype)


def fp8_per_token(x: torch.Tensor) -> torch.Tensor:
    """Copy of `x` (..., channels), rounded to e4m3 with one scale per token."""
    values = x.float()
    scale = values.abs().amax(-1, keepdim=True).clamp_min_(LEAST) / EIGHT.largest
    return _rounded(values, scale, EIGHT).to(x.dtype)


def fp8_per_group(x: torch.Tensor) -> torch.Tensor:
    """Copy of `x` (..., channels), rounded to e4m3 with a scale for each 128 inputs of a token."""
    values, width = x.float(), x.shape[-1]
    values = torch.nn.functional.pad(values, (0, -width % BLOCK))
    groups = fp8_per_token(torch.unflatten(values, -1, (-1, BLOCK))).view(values.shape)
    return groups[..., :width].to(x.dtype)


def fp8_per_tensor(x: torch.Tensor, *, scale: torch.Tensor) -> torch.Tensor:
    """Copy of `x` (any shape), rounded to e4m3 with `scale`, fp32 (1,)."""
    return _rounded(x.float(), scale, EIGHT).to(x.dtype)


def nvfp4_per_group(x: torch.Tensor, *, scale: torch.Tensor) -> torch.Tensor:
    """Copy of `x` (..., channels), rounded to e2m1 with an e4m3 scale for 16 inputs of a token.

    These scales are divided by `scale`, fp32 (1,). The width is a multiple of 16.
    """
    groups = torch.unflatten(x.float(), -1, (-1, GROUP))
    wanted = groups.abs().amax(-1, keepdim=True) / FOUR.largest * scale
    found = EIGHT.round(wanted, wanted).clamp_(min=EIGHT.least / 8) / scale
    return _rounded(groups, found, FOUR).view(x.shape).to(x.dtype)


def _rounded(values: torch.Tensor, scale: torch.Tensor, numbers: MiniFloat) -> torch.Tensor:
    """fp32 `values` rounded to multiples of `scale`, which broadcasts; a new tensor."""
    scaled = values / scale
    return numbers.round(scaled, scaled).mul_(scale)


TOKENS: Mapping[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    "int8-token": int8_per_token,
    "fp8-token": fp8_per_token,
    "fp8-group128": fp8_per_group,
}
SCALED: Mapping[Activation, Callable[..., torch.Tensor]] = {
    "fp8-tensor": fp8_per_tensor,
    "nvfp4": nvfp4_per_group,
}
