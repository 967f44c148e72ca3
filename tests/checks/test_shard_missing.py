"""A shard that is not there."""

from collections.abc import Callable

from tests.checks.conftest import Folder, codes

Copied = Callable[..., Folder]


def test_the_shard_is_named_once(copied: Copied) -> None:
    folder = copied("gptq", shards=2)
    shard = sorted(folder.path.glob("*.safetensors"))[1]
    shard.unlink()
    assert codes(folder) == [("shard-missing", shard.name)]
