"""Codes that the config does not mention."""

from collections.abc import Callable

import pytest

from tests.checks.conftest import Folder, codes

Copied = Callable[..., Folder]
Q = "model.layers.1.self_attn.q_proj"


@pytest.mark.parametrize("form", ["gptq", "awq", "pack"])
def test_a_config_without_its_block_is_one_fault(copied: Copied, form: str) -> None:
    folder = copied(form).foreign()
    folder.json("config.json", lambda config: config.pop("quantization_config") and None)
    assert codes(folder) == [("quantized-undeclared", "config.json")]


def test_a_linear_that_the_config_excludes(copied: Copied) -> None:
    folder = copied("awq").foreign()
    folder.json(
        "config.json",
        lambda config: config["quantization_config"]["modules_to_not_convert"].append(Q),
    )
    assert codes(folder) == [("quantized-undeclared", Q)]


def test_a_list_of_ignored_linears_that_catches_too_many(copied: Copied) -> None:
    folder = copied("pack").foreign()
    folder.json(
        "config.json",
        lambda config: config["quantization_config"]["ignore"].append("re:.*self_attn.*"),
    )
    assert {code for code, _ in codes(folder)} == {"quantized-undeclared"}
