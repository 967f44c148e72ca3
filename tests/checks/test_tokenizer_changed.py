"""A tokenizer that is not the source's."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.checks.conftest import Folder, codes

Copied = Callable[..., Folder]
Sources = Callable[[str], Path]


def test_two_tokens_that_changed_places(copied: Copied, sources: Sources) -> None:
    folder = copied("gptq").foreign()

    def plant(document: Any) -> None:
        vocabulary = document["model"]["vocab"]
        first, second = list(vocabulary)[10:12]
        vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]

    folder.json("tokenizer.json", plant)
    found = codes(folder, source=str(sources("llama")))
    assert found == [("tokenizer-changed", "tokenizer.json")]


def test_a_file_that_was_only_saved_again_is_no_fault(copied: Copied, sources: Sources) -> None:
    folder = copied("gptq").foreign()
    folder.json("tokenizer.json", lambda document: document.update(truncation=None))
    assert codes(folder, source=str(sources("llama"))) == []


def test_a_tokenizer_that_is_missing(copied: Copied, sources: Sources) -> None:
    folder = copied("gptq").foreign()
    (folder.path / "tokenizer.json").unlink()
    found = codes(folder, source=str(sources("llama")))
    assert found == [("tokenizer-changed", "tokenizer.json")]


def test_a_chat_template_of_another_text(copied: Copied, sources: Sources, tmp_path: Path) -> None:
    source = shutil.copytree(sources("llama"), tmp_path / "source")
    (source / "chat_template.jinja").write_text("{{ messages }}")
    found = codes(copied("gptq").foreign(), source=str(source))
    assert found == [("tokenizer-changed", "chat_template.jinja")]
