from collections.abc import Callable

import pytest

from quantkit.planning.model.weights import PlannedModel, recipe_build, stored_build, weigh
from quantkit.planning.serve.offload import block_bytes, split_blocks
from quantkit.recipes.loader import build_recipe

Planned = Callable[..., PlannedModel]
PCIE_4 = 31.5e9


def test_70b_with_20_gb_resident_takes_five_seconds_a_token(planned: Planned) -> None:
    model = planned("Llama-3-70B")
    split = split_blocks(model, stored_build(model), 20 * 10**9, None, PCIE_4)
    assert split is not None
    assert split.seconds == pytest.approx(4.8, abs=0.15)
    assert sum(split.blocks.values()) == 80


def test_every_byte_lies_somewhere_and_the_gpu_keeps_room_for_a_block(planned: Planned) -> None:
    model = planned("Llama-3-8B")
    for build in (stored_build(model), recipe_build(model, build_recipe("gptq"))):
        blocks, around = block_bytes(model, build)
        total = sum(weigh(model, build).values())
        assert sum(blocks) + around == total
        for room in (4 * 10**9, 10**10, total):
            split = split_blocks(model, build, room, 2 * 10**9, None)
            assert split is not None
            assert sum(split.bytes.values()) == total
            assert split.bytes["RAM"] <= 2 * 10**9
            whole = split.bytes["GPU"] == total
            assert whole == (room >= total)
            assert whole or split.bytes["GPU"] + max(blocks) <= room


def test_what_lies_around_the_blocks_and_one_of_them_need_room_on_the_gpu(planned: Planned) -> None:
    model = planned("Llama-3-8B")
    build = stored_build(model)
    blocks, around = block_bytes(model, build)
    least = around + max(blocks)
    for room in (-(10**9), 0, around, least - 1):
        assert split_blocks(model, build, room, None, PCIE_4) is None
    split = split_blocks(model, build, least, None, PCIE_4)
    assert split is not None
    assert (split.blocks["GPU"], split.blocks["RAM"], split.bytes["GPU"]) == (0, 32, around)


def test_what_exceeds_the_ram_lies_on_disk_and_costs_more(planned: Planned) -> None:
    model = planned("Llama-3-70B")
    build = stored_build(model)
    ample, scarce = (
        split_blocks(model, build, 20 * 10**9, ram, PCIE_4) for ram in (None, 64 * 10**9)
    )
    assert ample is not None
    assert scarce is not None
    assert (ample.blocks["disk"], scarce.blocks["GPU"]) == (0, ample.blocks["GPU"])
    assert scarce.blocks["disk"] > 0
    assert (scarce.seconds or 0) > 2 * (ample.seconds or 0)
