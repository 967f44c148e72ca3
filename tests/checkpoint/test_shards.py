from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from quantkit.checkpoint.dtypes import TORCH_DTYPES
from quantkit.checkpoint.header import parse_header
from quantkit.checkpoint.shards import Shard, TensorSpec, plan_shards
from quantkit.checkpoint.stored import DTYPE_BYTES
from quantkit.checkpoint.tensors import as_bytes

names = st.from_regex(r"[A-Za-z0-9_]{1,6}(\.[a-z0-9]{1,3}){0,2}", fullmatch=True)
specs = st.lists(
    st.builds(
        TensorSpec,
        names,
        st.sampled_from(sorted(DTYPE_BYTES)),
        st.lists(st.integers(0, 5), max_size=3).map(tuple),
    ),
    max_size=12,
    unique_by=lambda spec: spec.name,
)


def blob(shard: Shard, tensors: dict[str, torch.Tensor]) -> bytes:
    """The file that the plan describes."""
    content = bytearray(shard.nbytes)
    content[: len(shard.head)] = shard.head
    for spec, offset in zip(shard.specs, shard.offsets, strict=True):
        content[offset : offset + spec.nbytes] = as_bytes(tensors[spec.name])
    return bytes(content)


def zeros(spec: TensorSpec) -> torch.Tensor:
    return torch.zeros(spec.shape, dtype=TORCH_DTYPES[spec.dtype])


@given(specs)
def test_one_shard_is_byte_for_byte_what_the_library_writes(some: list[TensorSpec]) -> None:
    tensors = {spec.name: zeros(spec) for spec in some}
    (shard,) = plan_shards(some, 10**9)
    assert blob(shard, tensors) == save(tensors, metadata={"format": "pt"})


@given(specs, st.integers(1, 2000))
@settings(max_examples=200)
def test_shards_hold_everything_once_and_keep_the_limit(some: list[TensorSpec], limit: int) -> None:
    shards = plan_shards(some, limit)
    assert sorted(spec.name for shard in shards for spec in shard.specs) == sorted(
        spec.name for spec in some
    )
    for shard in shards:
        assert shard.nbytes <= limit or len(shard.specs) <= 1
        length = int.from_bytes(shard.head[:8], "little")
        assert length == len(shard.head) - 8
        assert len(shard.head) % 8 == 0
        parsed = parse_header(shard.head[8:], shard.name, shard.nbytes)
        for spec, offset in zip(shard.specs, shard.offsets, strict=True):
            info = parsed[spec.name]
            assert (info.dtype, info.shape, info.start) == (spec.dtype, spec.shape, offset)
            assert offset % DTYPE_BYTES[spec.dtype] == 0


@given(specs, st.integers(1, 2000))
def test_shards_are_filled_in_the_order_given(some: list[TensorSpec], limit: int) -> None:
    place = {spec.name: i for i, s in enumerate(plan_shards(some, limit)) for spec in s.specs}
    assert [place[spec.name] for spec in some] == sorted(place.values())


def test_shards_are_well_filled() -> None:
    some = [TensorSpec(f"t{i}", "BF16", (1000,)) for i in range(100)]
    shards = plan_shards(some, 20_000)
    assert all(shard.nbytes > 16_000 for shard in shards[:-1])


@pytest.mark.parametrize(
    ("count", "expected"),
    [(1, ["model.safetensors"]),
     (2, ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"])],
)  # fmt: skip
def test_names_of_shards(count: int, expected: list[str]) -> None:
    some = [TensorSpec(f"t{i}", "I32", (100,)) for i in range(count)]
    assert [shard.name for shard in plan_shards(some, 500)] == expected


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_spec_of_a_tensor(device: Any) -> None:
    tensor = torch.empty(2, 3, dtype=torch.bfloat16, device=device)
    assert TensorSpec.like("w", tensor) == TensorSpec("w", "BF16", (2, 3))
