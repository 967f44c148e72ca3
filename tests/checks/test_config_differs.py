"""A config that describes another model than the source's."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.checks.conftest import Folder, codes, verified

Copied = Callable[..., Folder]
Sources = Callable[[str], Path]


@pytest.mark.parametrize(
    ("field", "value"),
    [("rms_norm_eps", 1e-3), ("hidden_act", "gelu"), ("max_position_embeddings", 64)],
)
def test_a_field(copied: Copied, sources: Sources, field: str, value: object) -> None:
    folder = copied("gptq").foreign()
    folder.json("config.json", lambda config: config.update({field: value}))
    found = verified(folder, source=str(sources("llama"))).problems
    assert [(p.code, p.path) for p in found] == [("config-differs", "config.json")]
    assert field in found[0].sentence


def test_rope(copied: Copied, sources: Sources) -> None:
    folder = copied("gptq").foreign()
    folder.json("config.json", lambda c: c["rope_parameters"].update(rope_theta=5e5))
    assert codes(folder, source=str(sources("llama"))) == [("config-differs", "config.json")]
