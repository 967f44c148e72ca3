"""An index of another version of the files."""

from collections.abc import Callable

from tests.checks.conftest import Folder, codes

Copied = Callable[..., Folder]
Q = "model.layers.1.self_attn.q_proj"


INDEX = "model.safetensors.index.json"


def test_a_tensor_in_another_file_than_is_stated(copied: Copied) -> None:
    folder = copied("gptq", shards=2)
    name = f"{Q}.scales"

    def move(index: dict[str, dict[str, str]]) -> None:
        shards = sorted(set(index["weight_map"].values()))
        index["weight_map"][name] = next(s for s in shards if s != index["weight_map"][name])

    folder.json(INDEX, move)
    assert codes(folder) == [("index-stale", name)]


def test_a_tensor_that_no_file_has(copied: Copied) -> None:
    folder = copied("gptq", shards=2)

    def add(index: dict[str, dict[str, str]]) -> None:
        index["weight_map"]["model.extra.weight"] = sorted(index["weight_map"].values())[0]

    folder.json(INDEX, add)
    assert codes(folder) == [("index-stale", "model.extra.weight")]
