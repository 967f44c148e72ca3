"""A folder that is none for a reason of its own."""

from collections.abc import Callable

from tests.checks.conftest import Folder, codes

Copied = Callable[..., Folder]


def test_two_sets_of_weights(copied: Copied) -> None:
    folder = copied("gptq", shards=2)
    folder.json("config.json", lambda config: config.update(num_hidden_layers=10**7))
    assert codes(folder) == [("unreadable", "config.json")]
