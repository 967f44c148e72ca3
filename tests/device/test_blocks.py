"""Budgets of a block: launches, waits, copies, and the memory that is planned for it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from quantkit.runs.forecast import plan_prepared
from tests.device.counts import Counts
from tests.device.shapes import LLAMA_8B, prepared_for, run_blocks, write_models

LINEARS, GROUPS = 7, 4
"""Of linears in a Llama's block, and of inputs that some of them share."""
NARROW = LLAMA_8B | {
    "hidden_size": 1024,
    "intermediate_size": 3584,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
}
COLUMNS = (3 * 1024 + 3584) // 128
"""Groups of 128 columns in a narrow block's groups of linears."""
METHODS = ("rtn", "awq", "smoothquant", "nf4")
SHARD = 5 * 10**9


@dataclass(frozen=True)
class Block:
    """What a block asked of the device; bytes that were planned, and held at most."""

    counts: Counts
    planned: int
    held: int


Run = Callable[..., Block]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folders: dict[str, Path] = {}

    def make(recipe: str, shape: dict[str, int], windows: int, length: int) -> Block:
        key = str(shape)
        if key not in folders:
            folders[key] = tmp_path_factory.mktemp("shapes")
            write_models(folders[key], **shape)
        prepared = prepared_for(folders[key], recipe)
        memory = plan_prepared(prepared, (windows, length), SHARD).memory
        assert memory is not None
        counts, held = run_blocks(prepared, windows, length)
        return Block(counts, memory.peak.bytes, held)

    return make


@pytest.mark.long
@pytest.mark.parametrize("recipe", METHODS)
def test_a_block_asks_little_whatever_its_width(recipe: str, run: Run) -> None:
    wide, narrow = run(recipe, LLAMA_8B, 2, 1024), run(recipe, NARROW, 2, 1024)
    for block in (wide, narrow):
        assert block.counts.launches.total() < 20_000
        assert block.counts.waits.total() <= 2 * GROUPS + 1  # inputs, candidates; losses
        assert block.counts.to_host.total() == block.counts.waits.total() - GROUPS
        assert sum("NF4" not in line for line in block.counts.to_device) <= LINEARS + 2 + GROUPS
    assert wide.counts.launches.total() < 6 * narrow.counts.launches.total()
    assert 1 <= wide.planned / wide.held < 1.05


@pytest.mark.long
def test_a_block_of_gptq_asks_by_groups_of_columns(run: Run) -> None:
    block = run("gptq", NARROW, 16, 1024)
    assert block.counts.launches.total() < 900 * COLUMNS
    assert block.counts.waits.total() == 2 * GROUPS + 1  # finite inputs, a factor; losses
    assert block.counts.to_host.total() == 1  # losses
    assert block.counts.to_device.total() == LINEARS + 2  # weights and norms
    assert 1 <= block.planned / block.held < 1.05
