"""GPTQModel's part of peers.py: GPTQ, AWQ or round-to-nearest through its public Python API."""

import numpy as np
import torch
from gptqmodel import GPTQModel
from gptqmodel.quantization.config import AWQConfig, GPTQConfig, RTNConfig
from peers import Job

CONFIGS = {"gptq": GPTQConfig, "awq": AWQConfig, "rtn": RTNConfig}


def quantize(job: Job) -> None:
    """Writes the artifact of the job; ``options`` are fields of the method's config class."""
    config = CONFIGS[job.method](
        bits=job.bits, group_size=job.group_size, sym=job.symmetric, **job.options
    )
    model = GPTQModel.load(job.model, config, device="cpu")
    rows = torch.from_numpy(np.load(job.tokens))
    samples = [{"input_ids": r[None], "attention_mask": torch.ones_like(r)[None]} for r in rows]
    model.quantize(None if job.method == "rtn" else samples, batch_size=1)
    model.save(job.artifact)
