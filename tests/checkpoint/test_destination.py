"""Results replace results, and nothing else."""

import json
from pathlib import Path

import pytest

from quantkit.checkpoint.destination import require_file, require_outside
from quantkit.core.errors import InputError

RESULT = json.dumps({"schema": "quantkit.eval/1"})


@pytest.fixture
def model(tmp_path: Path) -> Path:
    for name in ("config.json", "tokenizer.json", "model.safetensors", "quantkit.json"):
        (tmp_path / name).write_text("{}")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "content"),
    [("eval.json", "{}"), ("long.json", RESULT), ("table.csv", "a"), ("new.json", None)],
)
def test_results_are_written_again(model: Path, name: str, content: str | None) -> None:
    if content is not None:
        (model / name).write_text(content)
    require_file(model / name)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_files_of_a_model_are_not(model: Path, name: str) -> None:
    with pytest.raises(InputError, match="is a file of a model") as caught:
        require_file(model / name)
    assert caught.value.hint
    assert Path(caught.value.hint.removeprefix("-o ")).suffix == Path(name).suffix


def test_a_link_is_not_followed(model: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.json"
    link.symlink_to(model / "config.json")
    with pytest.raises(InputError, match="is a link"):
        require_file(link)


def test_a_folder_inside_a_model_gets_a_name_beside_it(model: Path) -> None:
    with pytest.raises(InputError, match="inside the model's folder") as caught:
        require_outside(model / "sweep", model, "sweep")
    assert caught.value.hint == f"-o {model.resolve()}-sweep"
