"""A tensor in another shape than its format gives it."""

from collections.abc import Callable

import pytest

from tests.checks.conftest import Folder, codes, verified

Copied = Callable[..., Folder]
Q = "model.layers.1.self_attn.q_proj"


@pytest.mark.parametrize(
    ("form", "part"),
    [("gptq", "qweight"), ("gptq", "scales"), ("awq", "qzeros"), ("pack", "weight_scale")],
)
def test_a_transposed_part(copied: Copied, form: str, part: str) -> None:
    folder = copied(form).foreign()
    folder.change(f"{Q}.{part}", lambda tensor: tensor.T)
    found = verified(folder).problems
    assert [(p.code, p.path) for p in found] == [("tensor-shape", f"{Q}.{part}")]
    assert "transposed" in found[0].sentence


def test_an_embedding_of_another_vocabulary(copied: Copied) -> None:
    folder = copied("gptq").foreign()
    folder.change("model.embed_tokens.weight", lambda tensor: tensor[:-1])
    assert codes(folder) == [("tensor-shape", "model.embed_tokens.weight")]
