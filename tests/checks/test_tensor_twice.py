"""A tensor in two files."""

from collections.abc import Callable

from tests.checks.conftest import Folder, codes

Copied = Callable[..., Folder]


def test_the_tensor_is_named(copied: Copied) -> None:
    folder = copied("gptq", shards=2)
    first, second = sorted(folder.path.glob("*.safetensors"))[:2]
    one, two = folder.tensors(first.name), folder.tensors(second.name)
    name = next(iter(one))
    folder.store(two | {name: one[name]}, second.name)
    assert codes(folder) == [("tensor-twice", name)]
