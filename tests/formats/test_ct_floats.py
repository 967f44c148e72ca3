"""compressed-tensors' layouts of 8- and 4-bit floats: codes, shapes, values, config blocks."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from quantkit.core.errors import InputError
from quantkit.core.facts import LinearFacts, ModelFacts
from quantkit.core.grid import rounding_of
from quantkit.core.scheme import Scheme
from quantkit.formats.compressed_tensors import FORMAT
from quantkit.grid.activation import input_scale
from quantkit.grid.nearest import nearest
from quantkit.grid.qtensor import QTensor
from tests.float_forms import FLOAT_SCHEMES

NAME = "model.layers.0.mlp.up_proj"
EIGHT = [scheme for scheme in FLOAT_SCHEMES if scheme.bits == 8]
SHAPES = ((1, 32), (7, 64), (130, 160), (200, 96), (128, 128))
NAN = 127


def rounded(weight: torch.Tensor, scheme: Scheme) -> QTensor:
    dtype = getattr(torch, scheme.scale_dtype("bfloat16"))
    qtensor = nearest(weight, None, scheme, rounding_of(scheme, dtype, [weight]))
    return replace(qtensor, input_scale=input_scale(scheme.activation, torch.ones(1)))


def again(qtensor: QTensor) -> QTensor:
    linear = LinearFacts(NAME, *qtensor.codes.shape)
    return FORMAT.decode(FORMAT.encode(qtensor, "bfloat16"), qtensor.scheme, linear)


@pytest.mark.parametrize("scheme", FLOAT_SCHEMES, ids=Scheme.label)
@pytest.mark.parametrize("shape", SHAPES)
def test_all_codes_of_any_shape_come_back(
    scheme: Scheme, shape: tuple[int, int], random_qtensor: Callable[..., QTensor]
) -> None:
    qtensor = random_qtensor(scheme, *shape)
    numbers = torch.arange(2**scheme.bits, dtype=torch.uint8)
    numbers = numbers[numbers & NAN != NAN]
    count = qtensor.codes.numel()
    codes = numbers.repeat(-(-count // len(numbers)))[:count].view(shape)
    found = again(replace(qtensor, codes=codes))
    assert torch.equal(found.codes, codes)
    assert torch.equal(found.dequantize(), replace(qtensor, codes=codes).dequantize())


@pytest.mark.parametrize("scheme", FLOAT_SCHEMES, ids=Scheme.label)
@pytest.mark.parametrize("size", [0.0, 1e-40, 1e-20, 1e-3, 1.0, 1e4, 1e30])
def test_any_weight_is_stored_as_it_is_read(scheme: Scheme, size: float) -> None:
    weight = torch.randn(130, 160, generator=torch.Generator().manual_seed(0)) * size
    weight[3] = 0
    weight[5, 7] *= 1000
    qtensor = rounded(weight, scheme)
    found = again(qtensor).dequantize()
    assert torch.isfinite(found).all()
    assert torch.equal(found, qtensor.dequantize())
    assert not found[3].any()


@pytest.mark.parametrize("code", [127, 255])
@pytest.mark.parametrize("scheme", EIGHT, ids=Scheme.label)
def test_codes_that_are_no_numbers_are_refused(
    scheme: Scheme, code: int, random_qtensor: Callable[..., QTensor]
) -> None:
    qtensor = random_qtensor(scheme, 64, 128)
    qtensor.codes[3, 5] = code
    with pytest.raises(InputError, match=r"up_proj\.weight.* no numbers"):
        again(qtensor)


@pytest.mark.parametrize("suffix", ["weight_scale", "weight_global_scale", "input_scale"])
@pytest.mark.parametrize("scheme", FLOAT_SCHEMES, ids=Scheme.label)
def test_scales_that_are_no_numbers_are_refused(
    scheme: Scheme, suffix: str, random_qtensor: Callable[..., QTensor]
) -> None:
    linear = LinearFacts(NAME, 64, 128)
    tensors = FORMAT.encode(random_qtensor(scheme, 64, 128), "bfloat16")
    if suffix not in tensors:
        return
    scales = tensors[suffix].clone()
    flat = (scales if scales.dtype is torch.uint8 else scales.view(-1)).flatten()
    if scales.dtype is torch.uint8:
        flat[0] = 255
    elif scales.dtype is torch.float8_e4m3fn:
        flat.view(torch.uint8)[0] = NAN
    else:
        flat[0] = torch.inf
    with pytest.raises(InputError, match=suffix):
        FORMAT.decode(tensors | {suffix: flat.view(scales.shape)}, scheme, linear)


@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16])
def test_scales_of_any_width_are_read(
    kind: torch.dtype, random_qtensor: Callable[..., QTensor]
) -> None:
    scheme, linear = FLOAT_SCHEMES[1], LinearFacts(NAME, 64, 128)
    tensors = FORMAT.encode(random_qtensor(scheme, 64, 128), "bfloat16")
    tensors["weight_scale"] = tensors["weight_scale"].to(kind)
    assert FORMAT.decode(tensors, scheme, linear).scales.dtype is kind


def block(scheme: Scheme) -> dict[str, Any]:
    facts = ModelFacts({NAME: scheme}, ("lm_head",), "lm_head", "bfloat16", "model.layers")
    stated: dict[str, Any] = json.loads(json.dumps(FORMAT.config(facts)))
    return stated


@pytest.mark.parametrize("scheme", FLOAT_SCHEMES, ids=Scheme.label)
def test_a_block_of_llm_compressor_is_read(scheme: Scheme) -> None:
    """It states every field of its arguments, observers included."""
    stated = block(scheme)
    (group,) = stated["config_groups"].values()
    for key in ("weights", "input_activations"):
        if group[key] is not None:
            full: dict[str, Any] = {
                "actorder": None,
                "observer": "memoryless_minmax",
                "observer_kwargs": {},
            }
            full |= {"block_structure": None, "group_size": None}
            full |= {"scale_dtype": None, "zp_dtype": None}
            group[key] = full | group[key]
    assert FORMAT.parse(stated)(NAME) == scheme


def test_schemes_without_a_layout_are_refused() -> None:
    linear = LinearFacts(NAME, 64, 128)
    for scheme in (Scheme("mxfp4", 4, 32, activation="fp8-token"), Scheme("mxfp8", 8, 64)):
        assert "no layout" in (FORMAT.check(scheme, linear) or "")
