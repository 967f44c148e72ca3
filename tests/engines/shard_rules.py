"""Run by vLLM's interpreter: which tensor-parallel degrees its own rules refuse, and why.

`python shard_rules.py job.json`, where each case of the job has a model folder, a degree, and the
linears that a rank would hold. The answers lie beside it, in `verdicts.json`: a message, or null.
No GPU is asked for anything: the rules are told that there is one.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def pretend_cuda() -> None:
    """Let the kernels' rules decide as for a CUDA GPU of compute capability 8.9."""
    from vllm.model_executor.kernels.linear.mixed_precision import marlin
    from vllm.model_executor.layers.quantization.utils import marlin_utils

    gpu = SimpleNamespace(
        is_cuda=lambda: True,
        is_cpu=lambda: False,
        is_xpu=lambda: False,
        is_rocm=lambda: False,
        get_device_capability=lambda: SimpleNamespace(to_int=lambda: 89),
    )
    marlin.current_platform = marlin_utils.current_platform = gpu


def heads(folder: str, kv_heads: int, degree: int) -> None:
    """The checks of the config, and of QKVParallelLinear."""
    from vllm.config import ModelConfig, ParallelConfig
    from vllm.distributed.utils import divide

    model = ModelConfig(model=folder, skip_tokenizer_init=True, dtype="bfloat16")
    parallel = ParallelConfig(tensor_parallel_size=degree, distributed_executor_backend="mp")
    model.verify_with_parallel_config(parallel)
    divide(max(kv_heads, degree), min(kv_heads, degree))


def linear(case: dict[str, Any], degree: int) -> None:
    """The checks of ColumnParallelLinear, RowParallelLinear, and of Marlin with its scales."""
    import torch
    from vllm.distributed.utils import divide, verify_group_size_divides_partition
    from vllm.model_executor.kernels.linear.mixed_precision.marlin import MarlinLinearKernel
    from vllm.model_executor.kernels.linear.mixed_precision.MPLinearKernel import (
        MPLinearLayerConfig,
    )
    from vllm.scalar_type import scalar_types

    for size in case["dealt"]:
        divide(size, degree)
    if case["bits"] is None:
        return
    if case["parts"]:
        blocks(case, degree)
        return
    kernel = MPLinearLayerConfig(
        full_weight_shape=(case["whole"][1], case["whole"][0]),
        partition_weight_shape=(case["part"][1], case["part"][0]),
        weight_type={4: scalar_types.uint4b8, 8: scalar_types.uint8b128}[case["bits"]],
        act_type=torch.bfloat16,
        group_size=case["group"],
        zero_points=False,
    )
    good, reason = MarlinLinearKernel.can_implement(kernel)
    if not good:
        raise ValueError(reason)
    if case["group"] != -1:
        verify_group_size_divides_partition(case["part"][1], case["group"])


def blocks(case: dict[str, Any], degree: int) -> None:
    """The check of weights with scales of 128 by 128: a rank holds whole blocks."""
    import torch
    from vllm import distributed
    from vllm.model_executor.layers.quantization.utils.fp8_utils import validate_fp8_block_shape

    distributed.get_tensor_model_parallel_world_size = lambda: degree
    (outputs, inputs), rank = case["whole"], sum(case["parts"])
    outputs = rank * degree if case["part"][1] == inputs else outputs  # heads may be copied
    size, layer = [case["group"], case["group"]], torch.nn.Module()
    validate_fp8_block_shape(layer, inputs, outputs, case["part"][1], case["parts"], size)


def verdict(case: dict[str, Any]) -> str | None:
    """What vLLM says against a case."""
    try:
        heads(case["folder"], case["kv_heads"], case["degree"])
        for each in case["linears"]:
            linear(each, case["degree"])
    except (AssertionError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def main() -> None:
    """Answer every case of the job."""
    path = Path(sys.argv[1])
    pretend_cuda()
    verdicts = {name: verdict(case) for name, case in json.loads(path.read_text()).items()}
    (path.parent / "verdicts.json").write_text(json.dumps(verdicts))


if __name__ == "__main__":
    main()
