"""A quantization config with another number than the tensors."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.checks.conftest import Folder, codes, verified

Copied = Callable[..., Folder]


@pytest.mark.parametrize(
    ("form", "field", "value"),
    [
        ("gptq", "group_size", 64),
        ("gptq", "bits", 8),
        ("gptq_w8", "bits", 4),
        ("awq", "group_size", 128),
        ("gptq_v2", "group_size", -1),
    ],
)
def test_one_fault_names_what_is_stated_and_what_is_stored(
    copied: Copied, form: str, field: str, value: int
) -> None:
    folder = copied(form)
    folder.block(**{field: value})
    found = verified(folder)
    assert [(p.code, p.path) for p in found.problems] == [("scheme-contradicted", "config.json")]
    assert "13 more" in found.problems[0].sentence


def test_zero_points_that_the_config_does_not_state(copied: Copied) -> None:
    folder = copied("pack_asym")

    def symmetric(config: dict[str, Any]) -> None:
        config["quantization_config"]["config_groups"]["group_0"]["weights"]["symmetric"] = True

    folder.json("config.json", symmetric)
    assert codes(folder) == [("scheme-contradicted", "config.json")]
