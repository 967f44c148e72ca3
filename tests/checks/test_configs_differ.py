"""A second file that states another quantization."""

import json
from collections.abc import Callable

from tests.checks.conftest import Folder, codes

Copied = Callable[..., Folder]


def test_a_field_that_differs(copied: Copied) -> None:
    folder = copied("gptq").foreign()
    (folder.path / "quantize_config.json").write_text(json.dumps({"bits": 4, "group_size": 128}))
    assert codes(folder) == [("configs-differ", "quantize_config.json")]


def test_equal_fields_are_no_fault(copied: Copied) -> None:
    folder = copied("gptq").foreign()
    (folder.path / "quantize_config.json").write_text(json.dumps({"bits": 4, "group_size": 32}))
    assert codes(folder) == []
