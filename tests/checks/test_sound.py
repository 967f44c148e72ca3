"""No check has anything to say about a folder that is right."""

from collections.abc import Callable
from pathlib import Path

import pytest

import quantkit
from tests.checks.conftest import FORMS, Folder, Made

FAMILIES = ("llama_tied", "qwen2", "gemma3", "gpt2", "experts_apart", "experts_fused")


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_sound_beside_its_source(
    made: Made, sources: Callable[[str], Path], form: str
) -> None:
    found = quantkit.verify(made(form), source=str(sources("llama")))
    assert (found.status, found.problems, found.unchecked) == ("sound", (), ())
    assert found.modules == 14


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_sound_without_what_only_quantkit_writes(
    copied: Callable[..., Folder], sources: Callable[[str], Path], form: str
) -> None:
    folder = copied(form).foreign()
    found = quantkit.verify(folder.path, source=str(sources("llama")))
    assert found.problems == ()
