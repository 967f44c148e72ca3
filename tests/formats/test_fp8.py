import pytest
import torch

from quantkit.core.errors import InputError
from quantkit.core.facts import LinearFacts
from quantkit.core.scheme import Scheme
from quantkit.formats import fp8
from quantkit.methods import rtn
from tests.methods.solving import quantized


@pytest.mark.parametrize("shape", [(128, 256), (200, 300), (64, 64)])
def test_round_trip_of_blocks_that_may_be_cut(shape: tuple[int, int]) -> None:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    solved = quantized(rtn, [weight], None, fp8.SCHEME, torch.float32, rtn.RtnOptions())
    qtensor, linear = solved[0].qtensor, LinearFacts("a", *shape)
    tensors = fp8.encode(qtensor)
    layout = fp8.layout(fp8.SCHEME, linear, "bfloat16")
    assert {n: tuple(t.shape) for n, t in tensors.items()} == {n: s for n, (_, s) in layout.items()}
    again = fp8.decode(tensors, fp8.SCHEME, linear)
    assert torch.equal(again.dequantize(), qtensor.dequantize())
    rows = tensors["weight_scale_inv"].repeat_interleave(128, 0)[: shape[0]]
    scales = rows.repeat_interleave(128, 1)[:, : shape[1]]
    assert torch.equal(tensors["weight"].float() * scales, qtensor.dequantize())


def test_a_missing_factor_is_named() -> None:
    weight = torch.zeros(128, 128, dtype=torch.float8_e4m3fn)
    with pytest.raises(InputError, match="weight_scale_inv"):
        fp8.decode({"weight": weight}, fp8.SCHEME, LinearFacts("a", 128, 128))


def test_blocks_of_others_are_left_to_the_reader_of_floats() -> None:
    block: dict[str, object] = {"quant_method": "fp8", "modules_to_not_convert": ["lm_head"]}
    assert not fp8.FORMAT.matches(block)
    block["producer"] = {"name": "quantkit"}
    assert fp8.FORMAT.matches(block)
    scheme = fp8.FORMAT.parse(block)
    assert scheme("lm_head") is None
    assert scheme("model.layers.0.mlp.up_proj") == fp8.SCHEME


def test_other_schemes_are_refused() -> None:
    assert "only" in (fp8.FORMAT.check(Scheme("fp8", 8, None), LinearFacts("a", 8, 8)) or "")
