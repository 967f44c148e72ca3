"""bitsandbytes' part of peers.py: NF4 through transformers, which needs no calibration."""

import torch
from peers import Job
from transformers import AutoModelForCausalLM, BitsAndBytesConfig


def quantize(job: Job) -> None:
    """Writes the artifact of the job; ``options`` are fields of ``BitsAndBytesConfig``.

    Raises:
        ValueError: Bits or group size are not those of NF4 in transformers (4, 64).
    """
    if (job.bits, job.group_size) != (4, 64):
        raise ValueError("NF4 through transformers is 4 bits in blocks of 64")
    config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=torch.bfloat16,
        **job.options,
    )
    model = AutoModelForCausalLM.from_pretrained(
        job.model, quantization_config=config, dtype=torch.bfloat16, device_map="cpu"
    )
    model.save_pretrained(job.artifact)
