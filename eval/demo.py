"""What `quantkit demo` shows: recipes for the embedded model, and rows of its table."""

from typing import Any

from quantkit.core.recipe import Recipe
from quantkit.eval.results import EvalResult
from quantkit.recipes.loader import Flags, build_recipe


def demo_recipes() -> dict[str, Recipe]:
    """Every method on the embedded model, by the name of its row."""
    calibration: Flags = {"samples": 16, "sequence_length": 512}
    grouped: Flags = {"group_size": 64, **calibration}
    three_bits: Flags = {"bits": 3, "format": "gptq", **grouped}
    return {
        "rtn W4": build_recipe("rtn", **grouped),
        "awq W4": build_recipe("awq", **grouped),
        "gptq W4": build_recipe("gptq", **grouped),
        "gptq W4 asym": build_recipe("gptq-v2-asym", **grouped),
        "rtn W3": build_recipe("rtn", **three_bits),
        "gptq W3": build_recipe("gptq", **three_bits),
        "nf4": build_recipe("nf4", **calibration),
        "nf4 double": build_recipe("nf4-double", **calibration),
        "smoothquant W8A8": build_recipe("smoothquant", **calibration),
    }


def row(
    name: str, size: int, bits: float, evaluation: EvalResult, seconds: float
) -> dict[str, Any]:
    """One row of the table: bytes, bits per weight, quality with standard errors, seconds."""
    found = evaluation.to_dict()
    kl = found.get("kl") or {}
    return {
        "recipe": name,
        "bytes": size,
        "bits_per_weight": bits,
        "perplexity": found["perplexity"]["value"],
        "perplexity_standard_error": found["perplexity"]["standard_error"],
        "kl_mean": kl.get("mean"),
        "kl_standard_error": kl.get("standard_error"),
        "top1_agreement": found.get("top1_agreement"),
        "seconds": seconds,
    }


def original_row(size: int, beside: EvalResult) -> dict[str, Any]:
    """The row of the model itself, from an evaluation that had it as its reference."""
    found = beside.to_dict()["reference_perplexity"]
    return {
        "recipe": "original",
        "bytes": size,
        "bits_per_weight": 16.0,
        "perplexity": found["value"],
        "perplexity_standard_error": found["standard_error"],
        "kl_mean": None,
        "kl_standard_error": None,
        "top1_agreement": None,
        "seconds": 0.0,
    }
