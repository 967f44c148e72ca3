"""In which dtype vLLM serves a model, and which formats it knows, by its own source."""

import json
from collections.abc import Callable
from pathlib import Path

from quantkit.core import registry
from quantkit.core.engine import Engine
from quantkit.planning.model.config import DTYPES

FAMILIES = ("llama", "gemma2", "gemma3", "gemma3_text", "glm4", "qwen3", "mixtral")
CAPABILITIES = ((7, 5), (8, 0), (8, 9), (9, 0), (12, 0))
OTHER = {"auto-round"}
"""A name in files that vLLM takes for its `inc`."""
ONLINE = {
    *("fp8_per_block", "fp8_per_channel", "fp8_per_tensor", "int8_per_channel_weight_only"),
    *("mxfp8", "nvfp4_per_token", "online"),
}
"""What vLLM makes of 16 bits as it loads them: no files are so."""


def test_dtypes_and_formats_are_those_of_vllm(
    run_script: Callable[[str, str, str], None],
    engine_python: Callable[[str], str],
    tmp_path: Path,
) -> None:
    engine_python("vllm")
    engine: Engine = registry.load("engines", "vllm", "ENGINE")
    job = {
        f"{dtype} {family} {capability}": (dtype, family, capability)
        for dtype in DTYPES
        for family in FAMILIES
        for capability in CAPABILITIES
    }
    (tmp_path / "job.json").write_text(json.dumps(job))
    run_script("vllm", "dtype_rules.py", str(tmp_path / "job.json"))
    theirs = json.loads((tmp_path / "dtypes.json").read_text())
    ours = {
        case: engine.serves(DTYPES[dtype], family, ".".join(map(str, capability)))
        for case, (dtype, family, capability) in job.items()
    }
    assert ours == {case: DTYPES[dtype] for case, dtype in theirs["dtypes"].items()}
    assert set(engine.methods) - OTHER == set(theirs["methods"]) - ONLINE
    assert "bitsandbytes" not in theirs["methods"]
