"""A tensor that nothing asks for."""

from collections.abc import Callable

import pytest
import torch

from tests.checks.conftest import Folder, codes, verified

Copied = Callable[..., Folder]
Q = "model.layers.1.self_attn.q_proj"


@pytest.mark.parametrize(
    "name",
    [
        f"{Q}.perm",
        f"{Q}.lora_A.weight",
        f"{Q}.pre_quant_scale",
        "model.layers.0.mlp.weight_scale",
        "model.layers.2.input_layernorm.weight",
        "stray",
    ],
)
def test_each_is_named(copied: Copied, name: str) -> None:
    folder = copied("gptq").foreign()
    folder.store(folder.tensors() | {name: torch.ones(4)})
    assert codes(folder) == [("tensor-undeclared", name)]


def test_zero_points_beside_a_symmetric_scheme(copied: Copied) -> None:
    folder = copied("pack").foreign()
    name = f"{Q}.weight_zero_point"
    folder.store(folder.tensors() | {name: torch.ones(16, 4, dtype=torch.int32)})
    assert codes(folder) == [("tensor-undeclared", name)]


def test_fewer_layers_than_are_stored(copied: Copied) -> None:
    folder = copied("gptq").foreign()
    folder.json("config.json", lambda config: config.update(num_hidden_layers=1))
    found = verified(folder)
    assert {p.code for p in found.problems} == {"tensor-undeclared"}
    assert all(p.path.startswith("model.layers.1.") for p in found.problems)


@pytest.mark.parametrize("form", ["fp8", "mxfp4", "nvfp4", "modelopt"])
@pytest.mark.parametrize("key", ["perm", "pre_quant_scale"])
def test_beside_codes_in_floats(copied: Copied, form: str, key: str) -> None:
    folder = copied(form).foreign()
    folder.store(folder.tensors() | {f"{Q}.{key}": torch.ones(128)})
    assert codes(folder) == [("tensor-undeclared", f"{Q}.{key}")]


def test_beside_codes_that_a_format_unknown_here_shifts(copied: Copied) -> None:
    """What the config states is not read, so that the tensor may be a part of it."""
    folder = copied("modelopt").foreign()
    folder.store(folder.tensors() | {f"{Q}.pre_quant_scale": torch.ones(128)})
    folder.block(quant_algo="NVFP4_AWQ")
    found = verified(folder)
    assert (found.status, found.counts) == ("incomplete", {})
