"""AutoRound's part of peers.py: SignRound or rounding in its float formats."""

import numpy as np
import torch
from auto_round import AutoRound
from auto_round.schemes import QuantizationScheme, preset_name_to_scheme
from peers import Job
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

PRESETS = {
    "nvfp4": "NVFP4",
    "mxfp4": "MXFP4",
    "mxfp8": "MXFP8",
    "fp8-channel": "FP8_STATIC",
    "fp8-tensor": "FPW8A16",
    "fp8-block": "FP8_BLOCK",
}


def scheme(job: Job) -> QuantizationScheme:
    """The preset of the job's scheme, without its activations unless they are asked for."""
    preset = preset_name_to_scheme(PRESETS[job.scheme])
    if not job.activations:
        preset.act_bits, preset.act_data_type = 16, "float"
    return preset


def own_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Weights of all quantized linears, which AutoRound has rounded in place."""
    return {
        f"{name.removesuffix('.orig_layer')}.weight": module.weight.detach().clone()
        for name, module in model.named_modules()
        if getattr(module, "scale", None) is not None and hasattr(module, "weight")
    }


def quantize(job: Job) -> None:
    """Writes the artifact of the job; ``options`` are arguments of ``AutoRound``.

    Method ``rtn`` is AutoRound with 0 iterations, which still searches the scales; with
    ``disable_opt_rtn=true`` it only rounds.
    """
    rows = torch.from_numpy(np.load(job.tokens))
    options = {"iters": 0} if job.method == "rtn" else {}
    rounder = AutoRound(
        AutoModelForCausalLM.from_pretrained(job.model, dtype="auto"),
        AutoTokenizer.from_pretrained(job.model),
        scheme=scheme(job),
        dataset=list(rows[:, None]),
        seqlen=rows.shape[1],
        nsamples=len(rows),
        device_map="cpu",
        **options | job.options,
    )
    model, _ = rounder.quantize()
    save_file(own_weights(model), job.own)
    rounder.save_quantized(job.artifact, format="auto_round")
