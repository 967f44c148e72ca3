"""What is read of vLLM's log."""

from quantkit.bench.vllm import kernels_named

LOG = """\
(EngineCore pid=7) INFO 11-20 10:00:01 [cuda.py:507] Using FLASH_ATTN attention backend out of \
potential backends: ['FLASH_ATTN'].
(EngineCore pid=7) INFO 11-20 10:00:02 [__init__.py:923] Using MacheteLinearKernel for \
mixed-precision linear
(EngineCore pid=7) INFO 11-20 10:00:02 [auto_gptq.py:352] Using MacheteLinearKernel for \
AutoGPTQLinearMethod
(EngineCore pid=7) INFO 11-20 10:00:02 [__init__.py:847] Selected CutlassInt8ScaledMMLinearKernel \
for CompressedTensorsW8A8Int8
(EngineCore pid=7) INFO 11-20 10:00:02 [int_wna16.py:356] Using 'MARLIN' WNA16 MoE backend.
(EngineCore pid=7) INFO 11-20 10:00:02 [w4a8_int8.py:140] Using CPU W4A8 Int8 MoE backend out of \
potential backends: ['CPU'].
(EngineCore pid=7) WARNING 11-20 10:00:02 [auto_awq.py:325] Layer 'a' is not supported by \
AutoAWQMarlin. Falling back to unoptimized AWQ kernels.
"""


def test_kernels_of_linears_and_experts_are_named_once_in_the_logs_order() -> None:
    assert kernels_named(LOG) == (
        "MacheteLinearKernel, CutlassInt8ScaledMMLinearKernel, MARLIN WNA16 MoE, "
        "CPU W4A8 Int8 MoE, unoptimized AWQ kernels"
    )
    assert kernels_named("INFO 11-20 10:00:02 [loader.py:1] Loading weights") == ""
