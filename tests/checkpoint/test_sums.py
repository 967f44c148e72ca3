"""Sums are checked before a folder is trusted."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import quantkit
from quantkit.checkpoint.sums import require_sums
from quantkit.core.errors import IntegrityError


@pytest.fixture
def changed(embedded_w4: Path, tmp_path: Path) -> Callable[[str], Path]:
    """A copy of an artifact in which one file has one more byte."""

    def change(name: str) -> Path:
        folder = shutil.copytree(embedded_w4, tmp_path / "out")
        with (folder / name).open("a") as file:
            file.write("\n")
        return folder

    return change


def test_a_changed_tokenizer_stops_eval_and_generate(changed: Callable[[str], Path]) -> None:
    folder = changed("tokenizer.json")
    with pytest.raises(IntegrityError, match=r"tokenizer\.json") as evaluated:
        quantkit.evaluate(str(folder))
    assert evaluated.value.exit_code == 6
    assert "quantkit verify" in evaluated.value.hint
    with pytest.raises(IntegrityError, match=r"tokenizer\.json"):
        quantkit.generate(str(folder), "Once")


def test_a_model_card_may_be_edited(changed: Callable[[str], Path]) -> None:
    require_sums(changed("README.md"))


def test_a_folder_without_sums_is_taken_as_it_is(embedded_w4: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(embedded_w4, tmp_path / "out")
    (folder / "SHA256SUMS").unlink()
    (folder / "tokenizer.json").write_text("{}")
    require_sums(folder)
