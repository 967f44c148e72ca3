"""What is opened, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from quantkit.core.errors import InputError, RefusedError
from quantkit.model.open import open_model


def test_a_folder_that_is_no_model_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"config\.json"):
        open_model(tmp_path)


def test_a_foreign_format_is_refused_by_name(tiny_checkpoint: Callable[..., Path]) -> None:
    folder = tiny_checkpoint("llama", private=True)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "hqq"}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(RefusedError, match="is not supported") as caught:
        open_model(folder)
    assert "hqq" in str(caught.value)
