"""Linears of one fused group in different schemes."""

from collections.abc import Callable

import pytest
import torch

from tests.checks.conftest import Folder, codes

Copied = Callable[..., Folder]


def unequal(folder: Folder, part: str) -> Folder:
    """The folder with one linear in floats, and so excluded."""
    name = f"model.layers.0.{part}"
    tensors = {k: v for k, v in folder.tensors().items() if not k.startswith(f"{name}.")}
    shape = (64, 128) if part.endswith("k_proj") else (128, 128)
    folder.store(tensors | {f"{name}.weight": torch.randn(shape).bfloat16()})
    folder.json("config.json", lambda c: c["quantization_config"]["ignore"].append(name))
    return folder


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_one_of_q_k_v_in_floats(copied: Copied, engine: str) -> None:
    folder = unequal(copied("pack").foreign(), "self_attn.k_proj")
    assert codes(folder, engine=engine) == [("fused-unequal", "model.layers.0.self_attn")]
    assert codes(folder) == []


def test_an_engine_that_fuses_nothing(copied: Copied) -> None:
    folder = unequal(copied("pack").foreign(), "self_attn.k_proj")
    assert codes(folder, engine="transformers") == []


def test_a_linear_that_is_fused_with_no_other(copied: Copied) -> None:
    folder = unequal(copied("pack").foreign(), "self_attn.o_proj")
    assert codes(folder, engine="vllm") == []
