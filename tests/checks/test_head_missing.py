"""A head that was dropped."""

from collections.abc import Callable

from tests.checks.conftest import Folder, codes

Copied = Callable[..., Folder]


def test_a_dropped_head_that_is_not_tied(copied: Copied) -> None:
    folder = copied("gptq").foreign()
    tensors = folder.tensors()
    del tensors["lm_head.weight"]
    folder.store(tensors)
    assert codes(folder) == [("head-missing", "lm_head.weight")]


def test_a_tied_head_that_the_config_unties(copied: Copied) -> None:
    folder = copied("gptq", "llama_tied").foreign()
    assert codes(folder) == []
    folder.json("config.json", lambda config: config.update(tie_word_embeddings=False))
    assert codes(folder) == [("head-missing", "lm_head.weight")]
