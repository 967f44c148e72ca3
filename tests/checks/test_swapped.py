"""The weights of two linears under each other's names."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.checks.conftest import Folder, verified

Copied = Callable[..., Folder]
Q = "model.layers.1.self_attn.q_proj"
Sources = Callable[[str], Path]


OTHER = "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("form", ["gptq", "awq", "pack", "w8a8", "fp8", "nf4"])
def test_both_are_named(copied: Copied, sources: Sources, form: str, own: bool) -> None:
    folder = copied(form) if own else copied(form).foreign()
    tensors = folder.tensors()
    for name in [n for n in tensors if n.startswith(f"{Q}.")]:
        there = name.replace(Q, OTHER)
        tensors[name], tensors[there] = tensors[there], tensors[name]
    folder.store(tensors)
    source = None if own else str(sources("llama"))
    found = verified(folder, source=source).problems
    assert {(p.code, p.path) for p in found} == {("swapped", Q), ("swapped", OTHER)}
    assert OTHER in next(p.sentence for p in found if p.path == Q)
