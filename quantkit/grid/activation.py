"""Activations as the W8A8 kernels of serving engines quantize them at run time."""

import torch


def int8_per_token(x: torch.Tensor) -> torch.Tensor:
    """Copy of `x` (..., channels), rounded to 8 bits with one symmetric scale per token.

    Per-token quantization of SmoothQuant (arXiv 2211.10438, section 2) with scale absmax / 127. The
    computation is in fp32, as in vLLM's W8A8 kernels; the result has the dtype of `x`.
    """
    # vLLM divides by 127. compressed-tensors in transformers divides by 127.5, so that the same
    # checkpoint gives slightly different logits there.
    values = x.float()
    scale = values.abs().amax(-1, keepdim=True).clamp_min_(1e-10) / 127  # no 0 / 0 at zero tokens
    return (values / scale).round_().mul_(scale).to(x.dtype)
