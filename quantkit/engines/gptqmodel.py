"""GPTQModel's own loader."""

from quantkit.core.engine import Engine
from quantkit.core.facts import LinearFacts
from quantkit.core.scheme import Scheme

GROUPS = {
    "gptq": (16, 32, 64, 128, 256, 512, 1024),
    "gptq-v2": (16, 32, 64, 128, 256, 512, 1024),
    "awq": (16, 32, 64, 128),
}


EXPERTS = ("deepseek_v3", "qwen3_moe")
"""Model types whose experts it was seen to load with the right logits (7.7).

It stops at those of GLM-4-MoE and Jamba, and computes others than the file's for gpt-oss and
Qwen3-Next, and for Mixtral in AWQ.
"""


def refuses(output: str, scheme: Scheme, linear: LinearFacts) -> str | None:
    """Why GPTQModel would not load a linear, or load it wrong."""
    if linear.stored:
        return f"GPTQModel looks for `{linear.name}`, which is stored as `{linear.stored}`"
    if ".experts." in linear.name and linear.model_type not in EXPERTS:
        kind = linear.model_type or "this model"
        return f"GPTQModel was not seen to load experts of {kind}; try: --format compressed-tensors"
    if scheme.activation:
        return "GPTQModel does not support 8-bit activations; try: --recipe gptq"
    if scheme.group_size and scheme.group_size not in GROUPS[output]:
        sizes = ", ".join(map(str, GROUPS[output]))
        return f"GPTQModel loads {output} with groups of {sizes} or whole channels"
    return None


def usage(_output: str) -> str:
    """How a folder is loaded."""
    return """\
```python
# pip install gptqmodel
from gptqmodel import GPTQModel

model = GPTQModel.load("FOLDER")
```"""


ENGINE = Engine(
    name="gptqmodel",
    summary="ModelCloud GPTQModel",
    versions="gptqmodel 7.7",
    formats=tuple(GROUPS),
    refuses=refuses,
    usage=usage,
)
