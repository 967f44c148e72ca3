"""NVFP4's global scales in linears that engines fuse."""

from collections.abc import Callable

import pytest

from tests.checks.conftest import Folder, codes

Copied = Callable[..., Folder]
HOME = "model.layers.0.self_attn"


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_q_has_another_one_than_k_and_v(copied: Copied, engine: str) -> None:
    folder = copied("nvfp4").foreign()
    assert codes(folder, engine=engine) == []
    folder.change(f"{HOME}.q_proj.weight_global_scale", lambda scale: scale * 1.5)
    assert codes(folder, engine=engine) == [("fused-scales", HOME)]
    assert codes(folder) == []


def test_a_linear_that_is_fused_with_no_other(copied: Copied) -> None:
    folder = copied("nvfp4").foreign()
    folder.change(f"{HOME}.o_proj.weight_global_scale", lambda scale: scale * 1.5)
    assert codes(folder, engine="vllm") == []


def test_an_engine_that_fuses_nothing(copied: Copied) -> None:
    folder = copied("nvfp4").foreign()
    folder.change(f"{HOME}.q_proj.weight_global_scale", lambda scale: scale * 1.5)
    assert "fused-scales" not in dict(codes(folder, engine="transformers"))
