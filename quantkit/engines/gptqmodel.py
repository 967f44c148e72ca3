"""GPTQModel's own loader."""

from quantkit.core.engine import Engine
from quantkit.core.facts import LinearFacts
from quantkit.core.scheme import Scheme

GROUPS = {
    "gptq": (16, 32, 64, 128, 256, 512, 1024),
    "gptq-v2": (16, 32, 64, 128, 256, 512, 1024),
    "awq": (16, 32, 64, 128),
}


def refuses(output: str, scheme: Scheme, linear: LinearFacts) -> str | None:
    """Why GPTQModel would not load a linear; of Mixtral's experts it finds no tensor (7.7, run)."""
    if linear.stored and ".experts." in linear.name:
        return f"GPTQModel looks for `{linear.name}`, which is stored as `{linear.stored}`"
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
