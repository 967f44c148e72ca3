"""Planned memory against what the running model holds."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from quantkit.bench.runtime import load_runtime
from quantkit.bench.timing import Cell, Run
from quantkit.eval.planned_memory import TOKENS, planned_memory
from quantkit.model.open import open_model
from quantkit.planning.model.config import read_architecture
from quantkit.planning.serve.activations import activation_peak
from quantkit.results.schema import Memory


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3", "falcon"])
def test_the_planned_cache_is_the_one_that_a_run_allocates(
    tiny_checkpoint_cache: Callable[..., Path], family: str
) -> None:
    model = open_model(tiny_checkpoint_cache(family))
    memory = planned_memory(model.config, model.dtype, 10**6)
    run = Run(load_runtime(model).network, Cell(1, 40, 8))
    run()
    assert memory.kv_bytes_per_token == run.kv_bytes() // 48
    assert memory.planned_bytes is not None
    assert memory.planned_bytes > 10**6 + TOKENS * memory.kv_bytes_per_token


def test_twice_the_width_of_a_number_is_twice_the_cache(
    tiny_checkpoint_cache: Callable[..., Path],
) -> None:
    config = open_model(tiny_checkpoint_cache("llama")).config
    wide, narrow = (planned_memory(config, d, None) for d in (torch.float32, torch.bfloat16))
    assert wide.kv_bytes_per_token == 2 * (narrow.kv_bytes_per_token or 0)
    assert wide.planned_bytes is None
    assert wide.context_tokens == config.max_position_embeddings


def test_a_family_that_cannot_be_planned_has_no_plan() -> None:
    config = SimpleNamespace(to_dict=lambda: {"model_type": "unheard_of"})
    assert planned_memory(config, torch.float32, 1) == Memory()


def test_a_recurrent_state_is_of_no_token_and_in_fp32_whatever_the_model() -> None:
    """Mamba: of 16 x 256 states and 4 x 256 convolved steps a layer only the steps get wider."""
    described = {
        "model_type": "mamba",
        "hidden_size": 128,
        "num_hidden_layers": 3,
        "vocab_size": 96,
        "state_size": 16,
        "conv_kernel": 4,
        "expand": 2,
        "intermediate_size": 256,
        "time_step_rank": 8,
    }
    config = SimpleNamespace(to_dict=lambda: described)
    architecture = read_architecture(described)
    for dtype in (torch.float32, torch.bfloat16):
        memory = planned_memory(config, dtype, 10**6)
        passing = activation_peak(architecture, TOKENS, 1).bytes * dtype.itemsize // 2
        assert memory.kv_bytes_per_token == 0
        assert memory.planned_bytes is not None
        state = memory.planned_bytes - 10**6 - passing
        assert state == 3 * 256 * (4 * 16 + dtype.itemsize * 4)


def test_falcon_is_planned_with_the_heads_that_transformers_caches() -> None:
    """Its 2 KV heads are repeated for 8 queries before they are cached, 16 numbers each."""
    described = {
        "model_type": "falcon",
        "hidden_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 8,
        "num_kv_heads": 2,
        "new_decoder_architecture": True,
        "vocab_size": 96,
    }
    config = SimpleNamespace(to_dict=lambda: described)
    assert planned_memory(config, torch.float32, None).kv_bytes_per_token == 3 * 2 * 8 * 16 * 4
