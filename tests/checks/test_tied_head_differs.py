"""A head of its own beside a config that ties it."""

from collections.abc import Callable

from tests.checks.conftest import Folder, codes

Copied = Callable[..., Folder]


def test_other_values_than_the_embedding(copied: Copied) -> None:
    folder = copied("gptq").foreign()
    folder.json("config.json", lambda config: config.update(tie_word_embeddings=True))
    assert codes(folder) == [("tied-head-differs", "lm_head.weight")]


def test_the_same_values_are_no_fault(copied: Copied) -> None:
    folder = copied("gptq", "llama_tied").foreign()
    tensors = folder.tensors()
    folder.store(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()})
    assert codes(folder) == []
