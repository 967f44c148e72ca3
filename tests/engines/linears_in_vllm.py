"""Run by vLLM's interpreter: what it reads of artifacts, and what its linears make of inputs.

`python linears_in_vllm.py job.json`, where the job has a folder and a dtype for each name, and
whether it is served. Beside it lie `<name>.safetensors`: of each linear as vLLM joins them the
tensors that it has read (`<linear>.<suffix>`), and where it was served the inputs and outputs of
one forward (`<linear>.input`, `<linear>.output`).

Where the CPU build has no kernel, vLLM's own emulation stands in, or nothing: what it reads is kept
before a kernel sees it.
"""

import gc
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import save_file

QUANTIZED = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
STOPPED = "all is read"


class ReadError(Exception):
    """Every tensor of an artifact is read, and nothing is to be computed."""


def stand_in() -> None:
    """Put emulations and empty kernels where the CPU build has none."""
    from vllm.model_executor.kernels import linear
    from vllm.model_executor.kernels.linear.nvfp4 import NvFp4LinearLayerConfig
    from vllm.model_executor.layers.quantization import modelopt
    from vllm.model_executor.layers.quantization.compressed_tensors import schemes
    from vllm.platforms import PlatformEnum

    linear._POSSIBLE_MXFP8_KERNELS[PlatformEnum.CPU] = [linear.EmulationMxfp8LinearKernel]
    modules: dict[str, Any] = {**sys.modules}
    part = schemes.__name__ + ".compressed_tensors_"
    nothing = {"__init__": lambda *_, **__: None, "input_quant_key": lambda _: None}
    empty = type("Empty", (SimpleNamespace,), nothing)
    nvfp4 = linear.EmulationNvFp4LinearKernel(NvFp4LinearLayerConfig())
    modules[part + "w4a4_nvfp4"].init_nvfp4_linear_kernel = lambda **_: nvfp4
    modelopt.init_nvfp4_linear_kernel = lambda use_a16=False: empty() if use_a16 else nvfp4
    modules[part + "w4a4_mxfp4"].init_mxfp4_linear_kernel = lambda **_: empty()
    modules[part + "w8a16_fp8"].init_wfp8_a16_linear_kernel = lambda **_: empty()
    modules[part + "wNa16"].choose_mp_linear_kernel = lambda _: empty
    choose = linear.choose_scaled_mm_linear_kernel

    def choose_or_none(*args: Any, **options: Any) -> Any:
        """Blocks of FP8 have kernels for processors with AMX alone."""
        try:
            return choose(*args, **options)
        except ValueError:
            return empty

    linear.choose_scaled_mm_linear_kernel = choose_or_none


def keep(found: dict[str, torch.Tensor], *, served: bool) -> None:
    """Let vLLM's loader put into `found` what each linear has read."""
    from vllm.model_executor.model_loader import base_loader

    process = base_loader.process_weights_after_loading

    def kept(model: Any, *args: Any, **options: Any) -> None:
        for name, module in model.named_modules():
            if name.endswith(QUANTIZED):
                for suffix, tensor in module.named_parameters():
                    if tensor.float().isnan().all():  # a place for what only old artifacts have
                        continue
                    found[f"{name}.{suffix}"] = tensor.detach().clone().contiguous()
        if not served:
            raise ReadError(STOPPED)
        process(model, *args, **options)

    base_loader.process_weights_after_loading = kept


def answer(folder: str, dtype: str, *, served: bool) -> dict[str, torch.Tensor]:
    """What is kept of one artifact."""
    from vllm import LLM, SamplingParams
    from vllm.distributed import cleanup_dist_env_and_memory

    found: dict[str, torch.Tensor] = {}
    keep(found, served=served)
    options = {"enforce_eager": True, "max_model_len": 64, "skip_tokenizer_init": True}
    try:
        engine = LLM(model=folder, dtype=dtype, max_num_seqs=2, **options)
    except ReadError:
        return found

    def hook(name: str) -> Any:
        def seen(_: Any, args: Any, out: Any) -> None:
            if len(args[0]) == len(TOKENS):
                found[f"{name}.input"] = args[0].contiguous().clone()
                found[f"{name}.output"] = out[0].contiguous().clone()

        return seen

    model = engine.llm_engine.model_executor.driver_worker.worker.get_model()
    for name, module in model.named_modules():
        if name.endswith(QUANTIZED):
            module.register_forward_hook(hook(name))
    ask = SamplingParams(max_tokens=1, temperature=0, detokenize=False)
    engine.generate([{"prompt_token_ids": TOKENS}], ask, use_tqdm=False)
    del engine, model
    gc.collect()
    cleanup_dist_env_and_memory()
    return found


TOKENS = [2 + 7 * i for i in range(24)]


def main() -> None:
    """Answer every artifact of the job."""
    path = Path(sys.argv[1])
    torch.set_num_threads(1)
    stand_in()
    from vllm.model_executor.model_loader import base_loader

    process = base_loader.process_weights_after_loading
    for name, case in json.loads(path.read_text()).items():
        base_loader.process_weights_after_loading = process
        found = answer(case["folder"], case["dtype"], served=case["served"])
        save_file(found, path.parent / f"{name}.safetensors")


if __name__ == "__main__":
    main()
