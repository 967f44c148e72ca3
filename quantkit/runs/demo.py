"""The recipes that `quantkit demo` runs on the embedded model."""

from quantkit.core.recipe import Recipe
from quantkit.recipes.loader import Flags, build_recipe

WINDOWS = 16


def demo_recipes() -> list[Recipe]:
    """Every method; integer methods at group size 64, two of them also at 3 bits."""
    calibration: Flags = {"samples": 16, "sequence_length": 512}
    grouped: Flags = {**calibration, "group_size": 64}
    three: Flags = {**grouped, "bits": 3, "format": "gptq"}
    return [
        build_recipe("rtn", **grouped),
        build_recipe("awq", **grouped),
        build_recipe("gptq", **grouped),
        build_recipe("gptq-v2-asym", **grouped),
        build_recipe("rtn", **three),
        build_recipe("gptq", **three),
        build_recipe("nf4", **calibration),
        build_recipe("nf4-double", **calibration),
        build_recipe("smoothquant", **calibration),
    ]
