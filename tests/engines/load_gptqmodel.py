"""Run by the engine's interpreter: load each folder with GPTQModel itself, keep the fp32 logits."""

import json
import sys
from pathlib import Path

import torch
from gptqmodel import BACKEND, GPTQModel
from safetensors.torch import save_file

job = json.loads(Path(sys.argv[1]).read_text())
answers = Path(job["answers"])
torch.set_num_threads(1)
for name, folder in job["artifacts"].items():
    report = {"error": "", "kernels": []}
    logits = torch.zeros(0)
    backend = BACKEND.AWQ_TORCH if name.startswith("awq") else BACKEND.GPTQ_TORCH
    try:
        loaded = GPTQModel.load(folder, backend=backend, device="cpu", dtype=torch.float16)
        with torch.no_grad():
            logits = loaded.model.eval()(torch.tensor(job["tokens"])).logits.float()
        modules = loaded.model.modules()
        report["kernels"] = sorted({type(m).__name__ for m in modules if hasattr(m, "qweight")})
    except Exception as error:
        report["error"] = f"{type(error).__name__}: {error}"
    save_file({"logits": logits.contiguous()}, answers / f"{name}.safetensors")
    (answers / f"{name}.json").write_text(json.dumps(report))
