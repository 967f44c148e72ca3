"""Run by the engine's interpreter: load each folder with transformers, keep the fp32 logits."""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

job = json.loads(Path(sys.argv[1]).read_text())
answers = Path(job["answers"])
torch.set_num_threads(1)
for name, folder in job["artifacts"].items():
    report = {"error": "", "keys": []}
    logits = torch.zeros(0)
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, job["dtype"]), output_loading_info=True
        )
        report["keys"] = sorted(str(key) for part in info.values() for key in part)
        with torch.no_grad():
            logits = model.eval()(torch.tensor(job["tokens"])).logits.float()
        report["kernels"] = sorted({type(m).__name__ for m in model.modules() if list(m.buffers(recurse=False))})
    except Exception as error:
        report["error"] = f"{type(error).__name__}: {error}"
    save_file({"logits": logits.contiguous()}, answers / f"{name}.safetensors")
    (answers / f"{name}.json").write_text(json.dumps(report))
