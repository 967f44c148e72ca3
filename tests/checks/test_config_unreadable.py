"""config.json or an index that is no JSON."""

from collections.abc import Callable

from tests.checks.conftest import Folder, codes

Copied = Callable[..., Folder]


def test_a_cut_config_is_named(copied: Copied) -> None:
    folder = copied("gptq")
    path = folder.path / "config.json"
    path.write_text(path.read_text()[:-20])
    assert codes(folder) == [("config-unreadable", "config.json")]


def test_an_index_that_is_no_object_is_named(copied: Copied) -> None:
    folder = copied("gptq", shards=2)
    (folder.path / "model.safetensors.index.json").write_text("[1]")
    assert ("config-unreadable", "model.safetensors.index.json") in codes(folder)
