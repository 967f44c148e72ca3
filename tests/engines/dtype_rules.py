"""Run by vLLM's interpreter: the dtype that its default stands for, and the formats that it knows.

`python dtype_rules.py job.json`, where each case of the job has a dtype, a model_type and a CUDA
capability. The answers lie beside it, in `dtypes.json`. No GPU is asked for anything.
"""

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any


def main() -> None:
    """Answer a job."""
    import torch

    # the platform of a GPU asks for kernels that the CPU build has not; none is run
    sys.modules["vllm._C_stable_libtorch"] = ModuleType("vllm._C_stable_libtorch")
    from vllm.config import model as rules
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS
    from vllm.platforms.cuda import CudaPlatformBase

    def pretend(capability: list[int]) -> Any:
        number = tuple(capability)
        gpu = SimpleNamespace(has_device_capability=lambda least: number >= divmod(least, 10))
        gpu.supported_dtypes = CudaPlatformBase.supported_dtypes.fget(gpu)
        gpu.get_device_name = lambda: "pretended"
        gpu.get_device_capability = lambda: None
        return gpu

    job = json.loads(Path(sys.argv[1]).read_text())
    answers = {}
    for case, (dtype, model_type, capability) in job.items():
        rules.current_platform = pretend(capability)
        own = getattr(torch, dtype)
        found = rules._resolve_auto_dtype(model_type, own, is_pooling_model=False)
        answers[case] = str(found).removeprefix("torch.")
    told = {"dtypes": answers, "methods": sorted(QUANTIZATION_METHODS)}
    Path(sys.argv[1]).with_name("dtypes.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
