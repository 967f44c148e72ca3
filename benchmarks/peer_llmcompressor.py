"""llm-compressor's part of peers.py: one ``oneshot`` call per method, compressed-tensors out."""

import numpy as np
from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modifiers.gptq import GPTQModifier
from llmcompressor.modifiers.quantization import QuantizationModifier
from llmcompressor.modifiers.transform.awq import AWQModifier
from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier
from peers import Job


def scheme(job: Job) -> dict:
    """Quantization groups of the job: weights alone, or int8 weights and per-token activations."""
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
    """Modifiers of the method; ``options`` go to the one that bears the method's name."""
    groups, options = scheme(job), job.options
    if job.method == "gptq":
        return [GPTQModifier(**groups, **options)]
    if job.method == "awq":
        return [AWQModifier(**options), QuantizationModifier(**groups)]
    if job.method == "smoothquant":
        return [SmoothQuantModifier(**options), GPTQModifier(**groups)]
    return [QuantizationModifier(**groups, **options)]


def quantize(job: Job) -> None:
    """Writes the artifact of the job.

    The samples are neither shuffled nor thinned out: the default draws an unseeded permutation.
    """
    rows = np.load(job.tokens).tolist()
    samples = Dataset.from_dict({"input_ids": rows, "attention_mask": [[1] * len(r) for r in rows]})
    oneshot(
        model=job.model,
        dataset=samples,
        recipe=recipe(job),
        max_seq_length=len(rows[0]),
        num_calibration_samples=len(rows),
        shuffle_calibration_samples=False,
        output_dir=job.artifact,
    )
