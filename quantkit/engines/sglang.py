"""SGLang on CUDA. Its rules were read in its source, nothing was run."""

from quantkit.core.engine import Engine
from quantkit.core.format import LinearFacts
from quantkit.core.scheme import Scheme

GROUPS = (32, 64, 128)


def refuses(output: str, scheme: Scheme, linear: LinearFacts) -> str | None:
    """Why SGLang would not load `linear`."""
    if linear.transposed:
        return "SGLang has no quantized Conv1D; try: leave it out of the target engines"
    if output in ("gptq", "gptq-v2") and not scheme.symmetric:
        return "SGLang loads symmetric GPTQ only; try: --format compressed-tensors or awq"
    if scheme.grid == "int" and scheme.bits not in (4, 8):
        return f"SGLang has kernels for 4 and 8 bits, not {scheme.bits}; try: --bits 4"
    if output != "bitsandbytes" and scheme.group_size and scheme.group_size not in GROUPS:
        sizes = ", ".join(map(str, GROUPS))
        return f"SGLang loads {output} with groups of {sizes} or whole channels"
    return None


ENGINE = Engine(
    name="sglang",
    summary="SGLang",
    versions="SGLang 0.5.23 (read)",
    refuses=refuses,
)
