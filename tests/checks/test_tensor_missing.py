"""A tensor that is not there."""

from collections.abc import Callable

import pytest

from tests.checks.conftest import Folder, codes

Copied = Callable[..., Folder]
Q = "model.layers.1.self_attn.q_proj"


@pytest.mark.parametrize(
    ("form", "part"),
    [
        ("gptq", "scales"),
        ("gptq", "qzeros"),
        ("awq", "qweight"),
        ("pack", "weight_scale"),
        ("pack", "weight_shape"),
        ("pack_asym", "weight_zero_point"),
        ("w8a8", "weight_scale"),
        ("fp8", "weight_scale"),
        ("mxfp4", "weight_scale"),
        ("nvfp4", "weight_scale"),
        ("nvfp4", "weight_global_scale"),
        ("modelopt", "weight_scale"),
        ("nf4", "weight.absmax"),
        ("nf4_double", "weight.nested_absmax"),
    ],
)
def test_a_part_of_a_quantized_linear(copied: Copied, form: str, part: str) -> None:
    folder = copied(form).foreign()
    tensors = folder.tensors()
    del tensors[f"{Q}.{part}"]
    folder.store(tensors)
    assert codes(folder) == [("tensor-missing", f"{Q}.{part}")]


def test_a_whole_linear_is_one_fault(copied: Copied) -> None:
    folder = copied("gptq").foreign()
    folder.store({k: v for k, v in folder.tensors().items() if not k.startswith(Q)})
    assert codes(folder) == [("tensor-missing", Q)]


def test_a_norm(copied: Copied) -> None:
    folder = copied("gptq").foreign()
    tensors = folder.tensors()
    del tensors["model.norm.weight"]
    folder.store(tensors)
    assert codes(folder) == [("tensor-missing", "model.norm.weight")]
