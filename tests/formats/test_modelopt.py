import pytest
import torch

from quantkit.core.errors import RefusedError
from quantkit.core.facts import LinearFacts
from quantkit.core.scheme import Scheme
from quantkit.formats import compressed_tensors, modelopt
from quantkit.grid.qtensor import QTensor
from quantkit.methods import rtn
from tests.methods.solving import quantized

LINEAR = LinearFacts("model.layers.0.mlp.up_proj", 40, 128)
SCHEMES = modelopt.ALGORITHMS.values()


def qtensor_of(scheme: Scheme) -> QTensor:
    weight = torch.randn(40, 128, generator=torch.Generator().manual_seed(0)) * 0.03
    dtype = getattr(torch, scheme.scale_dtype("bfloat16"))
    solved = quantized(rtn, [weight], None, scheme, dtype, rtn.RtnOptions())
    static = scheme.activation in ("fp8-tensor", "nvfp4")
    scale = torch.tensor([0.375 if scheme.grid == "fp8" else 2.0**9]) if static else None
    found = solved[0].qtensor
    return QTensor(
        found.codes,
        found.scales,
        None,
        scheme,
        global_scale=found.global_scale,
        input_scale=scale,
    )


@pytest.mark.parametrize("scheme", SCHEMES, ids=Scheme.label)
def test_it_holds_the_numbers_of_compressed_tensors(scheme: Scheme) -> None:
    qtensor = qtensor_of(scheme)
    theirs = compressed_tensors.decode(compressed_tensors.encode(qtensor), scheme, LINEAR)
    ours = modelopt.decode(modelopt.encode(qtensor), scheme, LINEAR)
    assert torch.equal(ours.dequantize(), theirs.dequantize())
    assert torch.equal(ours.dequantize(), qtensor.dequantize())
    for name in ("global_scale", "input_scale"):
        one, other = getattr(ours, name), getattr(theirs, name)
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one, other)


def test_factor_and_divisor_are_reciprocals() -> None:
    scheme = Scheme("nvfp4", 4, 16)
    qtensor = qtensor_of(scheme)
    factor = modelopt.encode(qtensor)["weight_scale_2"]
    divisor = compressed_tensors.encode(qtensor)["weight_global_scale"]
    assert factor * divisor == 1.0  # exactly: powers of two


@pytest.mark.parametrize("scheme", SCHEMES, ids=Scheme.label)
def test_tensors_are_as_the_layout_says(scheme: Scheme) -> None:
    tensors = modelopt.encode(qtensor_of(scheme))
    layout = modelopt.layout(scheme, LINEAR, "bfloat16")
    assert {n: tuple(t.shape) for n, t in tensors.items()} == {n: s for n, (_, s) in layout.items()}


def test_blocks_of_others_are_left_to_the_reader_of_floats() -> None:
    block = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    assert not modelopt.FORMAT.matches(block | {"producer": {"name": "modelopt"}})
    assert modelopt.FORMAT.matches(block | {"producer": {"name": "quantkit"}})
    with pytest.raises(RefusedError, match="W4A8_AWQ"):
        modelopt.FORMAT.parse(block | {"quant_algo": "W4A8_AWQ"})


def test_ignored_linears_are_dense() -> None:
    scheme = modelopt.FORMAT.parse({"quant_algo": "MXFP8", "ignore": ["lm_head", "*.gate"]})
    assert scheme("lm_head") is None
    assert scheme("model.layers.1.mlp.gate") is None
    assert scheme("model.layers.1.mlp.up_proj") == Scheme("mxfp8", 8, 32)


def test_what_it_cannot_hold() -> None:
    assert "stores" in (modelopt.FORMAT.check(Scheme("mxfp4", 4, 32), LINEAR) or "")
    odd = LinearFacts("a", 8, 17)
    assert "do not divide" in (modelopt.FORMAT.check(Scheme("nvfp4", 4, 16), odd) or "")
