"""A weight that its format cannot decode."""

from collections.abc import Callable

from tests.checks.conftest import Folder, codes

Copied = Callable[..., Folder]
Q = "model.layers.1.self_attn.q_proj"


def test_a_stored_shape_that_contradicts_the_weight(copied: Copied) -> None:
    folder = copied("pack")
    folder.change(f"{Q}.weight_shape", lambda tensor: tensor + 1)
    assert codes(folder) == [("undecodable", Q)]


def test_a_quant_state_that_is_none(copied: Copied) -> None:
    folder = copied("nf4")
    folder.change(f"{Q}.weight.quant_state.bitsandbytes__nf4", lambda tensor: tensor.fill_(65))
    assert codes(folder) == [("undecodable", Q)]


def test_a_scale_below_zero(copied: Copied) -> None:
    folder = copied("fp8")
    folder.change(f"{Q}.weight_scale", lambda tensor: -tensor)
    assert codes(folder) == [("undecodable", Q)]
