"""A config of another model."""

from collections.abc import Callable

from tests.checks.conftest import Folder, codes

Copied = Callable[..., Folder]


def test_a_config_that_transformers_refuses(copied: Copied) -> None:
    folder = copied("gptq")
    folder.json("config.json", lambda config: config.update(model_type="no-such-model"))
    assert codes(folder) == [("model-contradicted", "config.json")]
