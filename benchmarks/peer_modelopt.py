"""ModelOpt's part of peers.py: its published configurations, exported as a Hugging Face folder.

On a machine without CUDA, ModelOpt 0.47 rounds to FP8 and exports NVFP4 and MXFP4 by itself, but
its fake quantization in FP4 and in MX formats, on which all methods but ``max`` rest, has kernels
for CUDA only. ``cpu_kernels`` puts torch code with the same rounding in their place.
"""

import copy
import sys
from types import ModuleType

import modelopt.torch.kernels.quantization.gemm as kernels
import modelopt.torch.quantization as mtq
import numpy as np
import torch
from modelopt.torch.export import export_hf_checkpoint
from modelopt.torch.quantization import tensor_quant
from peers import Job
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

CONFIGS = {
    ("nvfp4", "max"): mtq.NVFP4_DEFAULT_CFG,
    ("nvfp4", "mse"): mtq.NVFP4_W4A4_WEIGHT_MSE_FP8_SWEEP_CFG,
    ("nvfp4", "four-over-six"): mtq.NVFP4_FOUR_OVER_SIX_CFG,
    ("nvfp4", "local-hessian"): mtq.NVFP4_W4A4_WEIGHT_LOCAL_HESSIAN_CFG,
    ("nvfp4", "awq"): mtq.NVFP4_AWQ_LITE_CFG,
    ("nvfp4", "gptq"): mtq.NVFP4_W4A4_WEIGHT_MSE_FP8_SWEEP_CFG
    | {"algorithm": {"method": "gptq", "fused": True, "layerwise": {"enable": True}}},
    ("mxfp4", "max"): mtq.MXFP4_DEFAULT_CFG,
    ("mxfp8", "max"): mtq.MXFP8_DEFAULT_CFG,
    ("fp8-channel", "max"): mtq.FP8_PER_CHANNEL_PER_TOKEN_CFG,
    ("fp8-tensor", "max"): mtq.FP8_DEFAULT_CFG,
    ("fp8-tensor", "mse"): mtq.FP8_DEFAULT_CFG | {"algorithm": {"method": "mse"}},
    ("fp8-channel", "mse"): mtq.FP8_PER_CHANNEL_PER_TOKEN_CFG | {"algorithm": {"method": "mse"}},
    ("fp8-block", "max"): mtq.FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG,
}
BATCH = 16  # windows of one forward; AWQ rounds every weight 11 times in each


def round_fp4(x: torch.Tensor) -> torch.Tensor:
    """Nearest E2M1 value of x, ties to the even code, at most 6."""
    size = x.abs()
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    return (torch.round(size / step) * step).clamp_max(6).copysign(x)


def round_fp8(x: torch.Tensor) -> torch.Tensor:
    """Nearest E4M3 value of x, at most 448."""
    return x.clamp(-448, 448).to(torch.float8_e4m3fn).float()


def static_fp4(
    x: torch.Tensor,
    amax: torch.Tensor,
    global_amax: torch.Tensor | None = None,
    quantize_block_scales: bool = True,  # noqa: FBT001, FBT002 - ModelOpt's signature
    fp8_max: float = 448.0,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """NVFP4 with a given amax per block, as ``static_blockwise_fp4_fake_quant``."""
    scale = amax.float().flatten() / 6
    if quantize_block_scales:
        largest = amax.max() if global_amax is None else global_amax
        scale = tensor_quant.scaled_e4m3_impl(scale, largest.float() * (448.0 / fp8_max) / 6)
    blocks = x.float().reshape(len(scale), -1)
    divisor = torch.where(scale == 0, 1, scale)[:, None]
    rounded = round_fp4(blocks / divisor) * scale[:, None]
    return rounded.reshape(x.shape).to(out_dtype or x.dtype)


def dynamic_block(
    x: torch.Tensor, block: int, amax: torch.Tensor | None, bits: int, exponent: int, *_: int
) -> torch.Tensor:
    """NVFP4 with each block's own amax, or MXFP4 and MXFP8, as ``dynamic_block_quantize_op``."""
    blocks = x.float().reshape(-1, block)
    own = blocks.abs().amax(1, keepdim=True)
    if amax is not None:
        unit = amax.float().max() / (6 * 448)
        scale = round_fp8(own / (6 * unit)) * unit
    else:
        fraction, power = torch.frexp(own / (6 if bits == 4 else 448))
        scale = torch.exp2(power - (fraction == 0.5).float()).where(own > 0, 1)
    rounding = round_fp4 if (bits, exponent) == (4, 2) else round_fp8
    divisor = torch.where(scale == 0, 1, scale)
    return (rounding(blocks / divisor) * scale).reshape(x.shape).to(x.dtype)


def gptq_block(
    weight: torch.Tensor,
    amax: torch.Tensor,
    global_scale: float,
    factor: torch.Tensor,
    group: int,
    start: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rounded columns and their errors of one block of GPTQ, as ``gptq_fused_block_scalar``."""
    weight, rounded = weight.clone(), torch.empty_like(weight)
    errors = torch.empty_like(weight)
    scales = round_fp8(amax / (6 * global_scale)) * global_scale
    for column in range(weight.shape[1]):
        scale = scales[:, (start + column) // group]
        divisor = torch.where(scale == 0, 1, scale)
        rounded[:, column] = round_fp4(weight[:, column] / divisor) * scale
        errors[:, column] = (weight[:, column] - rounded[:, column]) / factor[column, column]
        weight[:, column + 1 :] -= errors[:, column, None] * factor[column, column + 1 :]
    return rounded, errors


def cpu_kernels() -> None:
    """Replaces the three kernels that ModelOpt has for CUDA only."""
    kernels.IS_AVAILABLE = True
    kernels.static_blockwise_fp4_fake_quant = static_fp4
    tensor_quant.dynamic_block_quantize_op = dynamic_block
    fused = ModuleType(f"{kernels.__name__}.gptq_fused_kernel")
    fused.gptq_fused_block_scalar = gptq_block
    sys.modules[fused.__name__] = fused


def own_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Each weight as the fake-quantized forward uses it; input scales of AWQ are multiplied in."""
    found = {}
    for name, module in model.named_modules():
        quantizer = getattr(module, "weight_quantizer", None)
        if quantizer is None or not quantizer.is_enabled:
            continue
        weight = quantizer(module.weight).detach()
        scale = getattr(module.input_quantizer, "pre_quant_scale", None)
        found[f"{name}.weight"] = weight if scale is None else weight.float() * scale.float()
    return found


@torch.no_grad()
def quantize(job: Job) -> None:
    """Writes the artifact of the job; ``options`` are fields of the configuration's algorithm."""
    model = AutoModelForCausalLM.from_pretrained(job.model, dtype="auto").eval()
    rows = torch.from_numpy(np.load(job.tokens))
    config = copy.deepcopy(CONFIGS[job.scheme, job.method])
    if not job.activations:
        config["quant_cfg"].append({"quantizer_name": "*input_quantizer", "enable": False})
    if job.options:
        config["algorithm"] = {"method": job.method} | job.options
    if not torch.cuda.is_available() and job.method != "max":
        cpu_kernels()
    mtq.quantize(model, config, lambda m: [m(batch) for batch in rows.split(BATCH)])
    if not torch.cuda.is_available():
        cpu_kernels()
    save_file(own_weights(model), job.own)
    export_hf_checkpoint(model, export_dir=job.artifact)
    AutoTokenizer.from_pretrained(job.model).save_pretrained(job.artifact)
