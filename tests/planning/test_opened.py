import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quantkit.core.errors import InputError, RefusedError
from quantkit.planning.opened import open_model
from quantkit.planning.weights import recipe_build, stored_build, weigh
from quantkit.recipes.loader import build_recipe


def tensor_bytes(folder: Path) -> int:
    """Bytes of all tensors, by safetensors itself."""
    from safetensors import safe_open

    total = 0
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            total += sum(file.get_tensor(key).nbytes for key in file.keys())  # noqa: SIM118
    return total


def test_a_folder_is_read_by_its_headers(family: str, tiny_checkpoint: Callable[..., Path]) -> None:
    folder = tiny_checkpoint(family, shards=2)
    model = open_model(str(folder))
    assert model.inventory.origin == "safetensors headers"
    assert model.name == folder.name
    assert sum(weigh(model, stored_build(model)).values()) == tensor_bytes(folder)


def test_a_config_alone_is_enough(tiny_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    folder = tiny_checkpoint("llama")
    whole = open_model(str(folder))
    shutil.copy(folder / "config.json", tmp_path)
    for name in (tmp_path, tmp_path / "config.json"):
        model = open_model(str(name))
        assert (model.inventory.origin, model.name) == ("config.json", tmp_path.name)
        assert weigh(model, stored_build(model)) == weigh(whole, stored_build(whole))


def test_a_quantized_folder_is_planned_as_it_is(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    folder = tiny_checkpoint("llama")
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    quantized = tmp_path / "quantized"
    shutil.copytree(folder, quantized)
    (quantized / "config.json").write_text(json.dumps(config))
    model = open_model(str(quantized))
    assert stored_build(model).name == "gptq"
    with pytest.raises(RefusedError, match="quantized already"):
        recipe_build(model, build_recipe("gptq"))
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="only its config"):
        open_model(str(tmp_path / "config.json"))


@pytest.mark.parametrize(("content", "match"), [("[]", "JSON object"), ("{", "cannot be read")])
def test_what_is_no_config_is_refused(tmp_path: Path, content: str, match: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(InputError, match=match):
        open_model(str(tmp_path))


def test_neither_folder_nor_hub_id() -> None:
    with pytest.raises(InputError, match="neither a folder nor a hub id"):
        open_model("no such thing")
