"""Folders as registries: entries by file name, and what is said of those that are none."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from quantkit import methods
from quantkit.core import registry
from quantkit.core.errors import InputError, QuantkitError


@pytest.fixture
def entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty file among the methods."""
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(tmp_path)])
    path = tmp_path / "half_done.py"
    path.write_text('"""Nothing yet."""\n', encoding="utf-8")
    yield path
    sys.modules.pop("quantkit.methods.half_done", None)


def test_an_unknown_name_gets_the_nearest_and_all() -> None:
    with pytest.raises(InputError, match="unknown method `gtpq`") as caught:
        registry.load("methods", "gtpq", "METHOD")
    assert caught.value.hint == "--method gptq"
    assert caught.value.why == f"known: {', '.join(registry.names('methods'))}"


@pytest.mark.usefixtures("entry")
def test_an_entry_without_its_attribute_is_named_with_its_file() -> None:
    assert "half-done" in registry.names("methods")
    with pytest.raises(QuantkitError, match=r"half_done\.py exports no METHOD") as e:
        registry.load("methods", "half-done", "METHOD")
    assert "add METHOD" in e.value.hint
