"""No check has anything to say about a folder that is right."""

from collections.abc import Callable
from pathlib import Path

import pytest

import quantkit
from tests.checks.conftest import FORMS, Folder, Made

Sources = Callable[[str], Path]
FAMILIES = (
    *("llama_tied", "qwen2", "gemma3", "gpt2", "gpt_neox", "bloom", "phi"),
    *("experts_apart", "experts_fused", "experts_renamed", "shared_expert"),
    *("hybrid", "linear_attention", "latent_attention"),
)
FOLDING = ("llama", "qwen2", "gemma3")
"""Families in which methods fold scales into norms, biases, and norms that add one."""


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_sound_beside_its_source(made: Made, sources: Sources, form: str) -> None:
    found = quantkit.verify(made(form), source=str(sources("llama")))
    assert (found.status, found.problems, found.unchecked) == ("sound", (), ())
    assert found.modules == 14


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_sound_without_what_only_quantkit_writes(
    copied: Callable[..., Folder], sources: Sources, form: str
) -> None:
    folder = copied(form).foreign()
    found = quantkit.verify(folder.path, source=str(sources("llama")))
    assert found.problems == ()


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_sound_beside_its_source(made: Made, sources: Sources, family: str) -> None:
    form = "gptq" if family in ("gpt2", "bloom") else "pack"
    found = quantkit.verify(made(form, family), source=str(sources(family)))
    assert (found.status, found.problems, found.unchecked) == ("sound", (), ())
    assert found.modules > 0


@pytest.mark.long
@pytest.mark.parametrize("family", FOLDING)
@pytest.mark.parametrize("form", ["w8a8", "awq_method", "gptq_method", "compensated"])
def test_what_methods_fold_and_move_is_sound(
    copied: Callable[..., Folder], sources: Sources, form: str, family: str
) -> None:
    folder = copied(form, family).foreign()
    found = quantkit.verify(folder.path, source=str(sources(family)))
    assert found.problems == ()


def test_several_files_are_sound(made: Made, sources: Sources) -> None:
    folder = made("gptq", shards=2)
    assert len(list(folder.glob("*.safetensors"))) > 1
    assert quantkit.verify(folder, source=str(sources("llama"))).status == "sound"


def test_a_plain_model_is_sound(sources: Sources) -> None:
    found = quantkit.verify(sources("llama"))
    assert (found.status, found.modules, found.format) == ("sound", 0, None)
