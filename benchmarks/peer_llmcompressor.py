"""llm-compressor's part of peers.py: one ``oneshot`` call per method, compressed-tensors out."""

import numpy as np
import torch
from compressed_tensors.quantization import preset_name_to_scheme
from compressed_tensors.quantization.lifecycle.forward import fake_quantize
from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modifiers.gptq import GPTQModifier
from llmcompressor.modifiers.quantization import QuantizationModifier
from llmcompressor.modifiers.transform.awq import AWQModifier
from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier
from llmcompressor.pipelines.cache import IntermediatesCache
from peers import Job
from safetensors.torch import save_file
from transformers import AutoTokenizer

PRESETS = {
    "nvfp4": "NVFP4",
    "mxfp4": "MXFP4",
    "mxfp8": "MXFP8",
    "fp8-channel": "FP8_DYNAMIC",
    "fp8-tensor": "FP8",
    "fp8-block": "FP8_BLOCK",
}
QUANTIZATION = ("weight_observer", "dampening_frac", "block_size", "actorder")


def scheme(job: Job) -> dict:
    """Quantization groups of the job: weights alone, or weights and activations."""
    if job.scheme:
        group = preset_name_to_scheme(PRESETS[job.scheme], ["Linear"])
        if not job.activations:
            group.input_activations = None
        return {"config_groups": {"group_0": group}, "ignore": ["lm_head"]}
    weights = {"num_bits": job.bits, "type": "int", "symmetric": job.symmetric, "dynamic": False}
    if job.method == "smoothquant" or job.group_size == -1:
        weights |= {"strategy": "channel"}
    else:
        weights |= {"strategy": "group", "group_size": job.group_size}
    group = {"targets": ["Linear"], "weights": weights}
    if job.method == "smoothquant":
        token = {"num_bits": 8, "type": "int", "symmetric": True}
        group["input_activations"] = token | {"strategy": "token", "dynamic": True}
    return {"config_groups": {"group_0": group}, "ignore": ["lm_head"]}


def recipe(job: Job) -> list:
    """Modifiers of the method; ``options`` go to the one that bears the method's name.

    Beside AWQ, those that are about quantization go to the modifier that rounds.
    """
    groups, options = scheme(job), job.options
    if job.method == "gptq":
        return [GPTQModifier(**groups, **options)]
    if job.method == "awq":
        rounding = {name: options[name] for name in QUANTIZATION if name in options}
        own = {name: value for name, value in options.items() if name not in QUANTIZATION}
        return [AWQModifier(**own), QuantizationModifier(**groups, **rounding)]
    if job.method == "smoothquant":
        return [SmoothQuantModifier(**options), GPTQModifier(**groups)]
    return [QuantizationModifier(**groups, **options)]


def own_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """What the quantized forward of compressed-tensors makes of each weight, in its dtype."""
    found = {}
    for name, module in model.named_modules():
        if arguments := getattr(getattr(module, "quantization_scheme", None), "weights", None):
            weight = fake_quantize(
                module.weight,
                module.weight_scale,
                getattr(module, "weight_zero_point", None),
                arguments,
                global_scale=getattr(module, "weight_global_scale", None),
            )
            found[f"{name}.weight"] = weight.detach().contiguous()
    return found


def quantize(job: Job) -> None:
    """Writes the artifact of the job.

    The samples are neither shuffled nor thinned out: the default draws an unseeded permutation.
    AWQ pins the memory of its samples, which only a machine with an accelerator can do.
    """
    if not torch.accelerator.is_available():
        IntermediatesCache.pin_memory = lambda *_: None
    rows = np.load(job.tokens).tolist()
    samples = Dataset.from_dict({"input_ids": rows, "attention_mask": [[1] * len(r) for r in rows]})
    model = oneshot(
        model=job.model,
        dataset=samples,
        recipe=recipe(job),
        max_seq_length=len(rows[0]),
        num_calibration_samples=len(rows),
        shuffle_calibration_samples=False,
    )
    if job.scheme:
        save_file(own_weights(model), job.own)
    model.save_pretrained(job.artifact, save_compressed=True)
    AutoTokenizer.from_pretrained(job.model).save_pretrained(job.artifact)
