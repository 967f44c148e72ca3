"""Skeletons hold no weight, and the buffers that they do hold are the real ones."""

from collections.abc import Callable
from pathlib import Path

import torch
import transformers

from quantkit.model.skeleton import build_skeleton, is_linear, linear_facts, read_config


def test_parameters_are_meta_and_buffers_are_those_of_a_loaded_model(
    tiny_checkpoint: Callable[..., Path], family: str
) -> None:
    folder = tiny_checkpoint(family)
    skeleton = build_skeleton(read_config(folder))
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert all(p.is_meta for p in skeleton.model.parameters())
    expected = dict(loaded.named_buffers())
    found = dict(skeleton.model.named_buffers())
    assert found.keys() == expected.keys()
    for name, buffer in found.items():
        torch.testing.assert_close(buffer, expected[name], rtol=0, atol=0)


def test_blocks_and_head_are_found(tiny_checkpoint: Callable[..., Path], family: str) -> None:
    skeleton = build_skeleton(read_config(tiny_checkpoint(family)))
    assert skeleton.prefix == ("transformer.h" if family == "gpt2" else "model.layers")
    assert len(skeleton.blocks) == 2
    assert skeleton.head == "lm_head"


def test_a_transposed_linear_reports_out_and_in_like_any_other(
    tiny_checkpoint: Callable[..., Path],
) -> None:
    skeleton = build_skeleton(read_config(tiny_checkpoint("gpt2")))
    module = skeleton.blocks[0].get_submodule("mlp.c_fc")
    facts = linear_facts("mlp.c_fc", module)
    assert is_linear(module)
    assert (facts.out_features, facts.in_features, facts.transposed) == (512, 128, True)
