"""vLLM, on CUDA and with its CPU build.

The rules are those of all its kernels together. The CPU build has fewer: 4-bit weights, and
8-bit weights with 8-bit activations.
"""

from quantkit.core.engine import Engine
from quantkit.core.format import LinearFacts
from quantkit.core.scheme import Scheme

GROUPS = (32, 64, 128)


def refuses(output: str, scheme: Scheme, _linear: LinearFacts) -> str | None:
    """Why vLLM would not load a linear."""
    if output == "bitsandbytes":
        return (
            "vLLM has no bitsandbytes loader since 0.32; "
            "try: --method gptq --format compressed-tensors"
        )
    if output in ("gptq", "gptq-v2"):
        if not scheme.symmetric:
            return "vLLM loads symmetric GPTQ only; try: --format compressed-tensors or awq"
        if scheme.bits not in (4, 8):
            return (
                f"vLLM loads GPTQ with 4 or 8 bits, not {scheme.bits}; "
                "try: --format compressed-tensors"
            )
    if output != "compressed-tensors" and scheme.group_size and scheme.group_size not in GROUPS:
        sizes = ", ".join(map(str, GROUPS))
        return f"vLLM loads {output} with groups of {sizes} or whole channels"
    return None


ENGINE = Engine(
    name="vllm",
    summary="vLLM",
    versions="vLLM 0.32 (CPU build, run), 0.33 (read)",
    refuses=refuses,
)
