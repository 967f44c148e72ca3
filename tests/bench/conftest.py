"""Artifacts of tiny models, quantized round to nearest."""

from collections.abc import Callable
from pathlib import Path

import pytest

from quantkit import quantize
from quantkit.recipes.loader import build_recipe

RECIPES = {
    "w4": {"recipe": "rtn", "group_size": 32},
    "w4-asymmetric": {"recipe": "rtn", "symmetric": False},
    "w8": {"recipe": "w8a16", "method": "rtn"},
    "w8-group": {"recipe": "rtn", "bits": 8, "group_size": 64},
    "w8a8": {"recipe": "smoothquant", "method": "rtn"},
}


@pytest.fixture(scope="session")
def quantized(
    tiny_checkpoint_cache: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """The folder of an artifact: `quantized("w4", "qwen2", dtype="bfloat16")`."""
    made: dict[tuple[str, str, str], Path] = {}

    def make(recipe: str, family: str = "llama", dtype: str = "float32") -> Path:
        key = recipe, family, dtype
        if key not in made:
            made[key] = tmp_path_factory.mktemp("quantized") / "-".join(key)
            source = tiny_checkpoint_cache(family, dtype=dtype)
            built = build_recipe(**RECIPES[recipe])  # type: ignore[arg-type]  # flags of several types
            quantize(str(source), made[key], recipe=built, device="cpu", evaluate=False)
        return made[key]

    return make
