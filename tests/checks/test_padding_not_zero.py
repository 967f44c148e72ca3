"""Bits that no code uses."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import quantkit
from quantkit.recipes.loader import build_recipe
from tests.checks.conftest import Folder, codes

MLP = "model.layers.1.mlp"


@pytest.fixture
def padded(tiny_checkpoint: Callable[..., Path], tmp_path: Path) -> Folder:
    """An artifact whose rows of 36 codes in 4 bits end in half a word."""
    source = tiny_checkpoint("llama", dtype="bfloat16", intermediate_size=36)
    recipe = build_recipe(
        "rtn",
        bits=4,
        group_size=None,
        symmetric=False,
        samples=1,
        sequence_length=64,
        format="compressed-tensors",
    )
    quantkit.quantize(str(source), tmp_path / "out", recipe=recipe, evaluate=False)
    return Folder(tmp_path / "out").foreign()


def test_none_is_found_where_none_is(padded: Folder) -> None:
    assert codes(padded) == []


@pytest.mark.parametrize("bit", [1 << 16, -(1 << 31)])
def test_a_bit_after_the_last_code_of_a_row(padded: Folder, bit: int) -> None:
    name = f"{MLP}.down_proj.weight_packed"

    def flip(words: torch.Tensor) -> torch.Tensor:
        words[3, -1] ^= bit
        return words

    padded.change(name, flip)
    assert codes(padded) == [("padding-not-zero", name)]


def test_a_bit_after_the_last_zero_point(padded: Folder) -> None:
    name = f"{MLP}.up_proj.weight_zero_point"

    def flip(words: torch.Tensor) -> torch.Tensor:
        words[-1, 0] ^= 1 << 20
        return words

    padded.change(name, flip)
    assert codes(padded) == [("padding-not-zero", name)]
