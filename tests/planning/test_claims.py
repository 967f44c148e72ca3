"""Every computed sentence of docs/memory-claims.md, from planning's own functions."""

import re
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from quantkit.core.training import Training, total
from quantkit.planning.model.kv import cache_bytes
from quantkit.planning.model.weights import PlannedModel, recipe_build, stored_build, weigh
from quantkit.planning.serve.activations import activation_peak
from quantkit.planning.serve.hardware import find_gpu
from quantkit.planning.serve.speed import decode_bound
from quantkit.planning.train.backward import megatron_activations, saved_activations
from quantkit.planning.train.memory import training_memory
from quantkit.recipes.loader import build_recipe

PAGE = (Path(__file__).parents[2] / "docs" / "memory-claims.md").read_text(encoding="utf-8")
GIB = 2**30
GPT3 = {
    "model_type": "gpt2",
    "n_embd": 12288,
    "n_layer": 96,
    "n_head": 96,
    "n_inner": 49152,
    "num_key_value_heads": 96,
    "n_positions": 2048,
    "vocab_size": 50257,
    "torch_dtype": "float16",
}
LLAMA_65B = {
    "hidden_size": 8192,
    "intermediate_size": 22016,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
}
Planned = Callable[..., PlannedModel]
NONE = Training()
Claim = Callable[[Planned], str]
CLAIMS: list[Claim] = []


def claim(function: Claim) -> Claim:
    """A sentence of the page."""
    CLAIMS.append(function)
    return function


def weights(model: PlannedModel, recipe: str | None = None, **flags: Any) -> int:
    """Bytes of the tensors as they are, or as a recipe leaves them."""
    build = recipe_build(model, build_recipe(recipe, **flags)) if recipe else stored_build(model)
    return sum(weigh(model, build).values())


def states(model: PlannedModel, training: Training = NONE) -> dict[str, int]:
    """Bytes of the states of a training run by their names."""
    memory = training_memory(model.architecture, model.inventory, training)
    names = ("weights", "gradients", "fp32 weights", "moments")
    found = (*memory.gpu, *memory.cpu, *memory.nvme)
    return {figure.name: figure.bytes for figure in found if figure.name in names}


def parameters(model: PlannedModel) -> int:
    return weights(model) // 2


@claim
def seventy_billion_in_16_bits(planned: Planned) -> str:
    sizes = (weights(planned(f"Llama-{n}-70B")) / 1e9 for n in (2, 3))
    return "{:.2f} GB (Llama 2), {:.2f} GB (Llama 3)".format(*sizes)


@claim
def seventy_billion_in_4_bits(planned: Planned) -> str:
    model = planned("Llama-3-70B")
    kept = weigh(model, stored_build(model))
    outside = (kept["embedding"] + kept["head"]) / 1e9
    packed = weights(model, "gptq-compressed", group_size=128) / 1e9
    codes = (kept["attention"] + kept["mlp"]) / 4 / 1e9
    scales = packed - codes - outside
    return (
        f"{packed:.1f} GB: {codes:.1f} GB of codes, {scales:.1f} GB of scales, one for 128 "
        f"weights, and {outside:.1f} GB of embedding and head in 16 bits"
    )


@claim
def seventy_billion_in_22_gb(planned: Planned) -> str:
    return f"22 GB would be {22e9 * 8 / parameters(planned('Llama-3-70B')):.1f} bits a weight"


@claim
def the_cache_is_linear(planned: Planned) -> str:
    architecture = planned("Llama-3-8B").architecture
    one = cache_bytes(architecture, 4096, 4).bytes
    longer, more = (cache_bytes(architecture, *load).bytes for load in ((8192, 4), (4096, 8)))
    return (
        f"twice the context takes {longer / one:.0f} times as much, "
        f"twice the batch {more / one:.0f}"
    )


@claim
def twenty_thousand_tokens(planned: Planned) -> str:
    model = planned("Llama-3-70B")
    each = cache_bytes(model.architecture, 20_000).bytes
    heads = cache_bytes(planned("Llama-3-70B", num_key_value_heads=64).architecture, 20_000).bytes
    return (
        f"{each / 1e9:.2f} GB a sequence, 100 GB from {-(-100e9 // each):.0f} sequences on; "
        f"{heads / 1e9:.1f} GB if each of the 64 heads had keys of its own"
    )


@claim
def heads_that_store(planned: Planned) -> str:
    grouped, full = (
        cache_bytes(planned("Llama-2-70B", num_key_value_heads=n).architecture, 2048, 128).bytes
        for n in (8, 64)
    )
    few = f"{grouped / 1e9:.1f} GB ({grouped / GIB:.1f} GiB) with 8 KV heads"
    return f"{few}, {full / 1e9:.0f} with 64"


@claim
def weights_beside_that_cache(planned: Planned) -> str:
    return f"its weights are {weights(planned('Llama-2-70B')) / 1e9:.1f} GB"


@claim
def adam_per_parameter(planned: Planned) -> str:
    model = planned("Llama-2-7B")
    each = {k: round(v / parameters(model)) for k, v in states(model).items()}
    parts = " + ".join(f"{count} ({name})" for name, count in each.items())
    return f"{parts} = {sum(each.values())} bytes a parameter"


@claim
def adam_of_7b(planned: Planned) -> str:
    found = {name: size / 1e9 for name, size in states(planned("Llama-2-7B")).items()}
    return (
        f"fp32 weights {found['fp32 weights']:.1f}, moments {found['moments']:.1f}, weights "
        f"{found['weights']:.1f} GB; with the gradients {sum(found.values()):.1f} GB"
    )


@claim
def states_of_175b(planned: Planned) -> str:
    model = planned("Llama-2-7B", **GPT3)
    return f"{sum(states(model).values()) / 1e12:.1f} TB of states"


@claim
def weights_of_175b(planned: Planned) -> str:
    half = weights(planned("Llama-2-7B", **GPT3)) / 1e9
    return f"{2 * half:.0f} GB and {half:.0f} GB"


@claim
def eight_bit_moments(planned: Planned) -> str:
    model = planned("Llama-3-8B")
    plain, small = (states(model, Training(optimizer=name)) for name in ("adamw", "adamw-8bit"))
    moments = plain["moments"] / small["moments"]
    return (
        f"moments shrink {moments:.1f} times, all states "
        f"{sum(plain.values()) / sum(small.values()):.1f} times"
    )


@claim
def checkpoints(planned: Planned) -> str:
    model, gpt = planned("Llama-3-8B"), planned("Llama-2-7B", **GPT3)
    kept, few = (
        saved_activations(model.architecture, model.inventory, 8192, way)[0].bytes
        for way in ("none", "full")
    )
    old, least = (
        megatron_activations(gpt.architecture, 2048, 1, way).bytes for way in ("none", "full")
    )
    return (
        f"{few // (32 * 8192)} bytes a token and block of Llama-3-8B, as wide as the model: "
        f"{kept / few:.1f} times less, and {old / least:.0f} times less of GPT-3"
    )


@claim
def ranks_of_zero_3(planned: Planned) -> str:
    model = planned("Llama-3-70B")
    one = sum(states(model).values())
    ranks = Training(gpus=1024, zero="3", checkpointing="full")
    memory = training_memory(model.architecture, model.inventory, ranks)
    own = sum(states(model, ranks).values())
    return (
        f"{own / 1e9:.2f} GB of states, {one / own:.0f} times less; "
        f"{total(memory.gpu) / 1e9:.1f} GB with gathered weights, buckets, checkpoints and "
        "logits of 2048 tokens"
    )


@claim
def forty_billion_offloaded(planned: Planned) -> str:
    """A model of 40e9 parameters: Llama-3-70B with fewer blocks."""
    model = planned("Llama-3-70B", num_hidden_layers=44)
    way = Training(zero="3", offload="cpu", checkpointing="full")
    memory = training_memory(model.architecture, model.inventory, way)
    assert parameters(model) == pytest.approx(40e9, rel=0.02)
    assert total(memory.gpu) < 32e9
    return f"{round(total(memory.cpu) / 1e10) * 10:.0f} GB of states in RAM"


@claim
def qlora_of_65b(planned: Planned) -> str:
    model = planned("Llama-2-70B", **LLAMA_65B)
    way = Training("qlora", checkpointing="full", tokens=512)
    memory = training_memory(model.architecture, model.inventory, way)
    figures = {figure.name: figure.bytes for figure in memory.gpu}
    assert not memory.cpu
    assert total(memory.gpu) < 48e9
    return (
        f"{figures['weights'] / 1e9:.1f} GB of weights stay on the GPU, "
        f"{total(memory.gpu) / 1e9:.1f} GB in all at 512 tokens"
    )


@claim
def eight_bit_weights(planned: Planned) -> str:
    model = planned("Llama-3-8B")
    whole, eight = weights(model), weights(model, "w8a16")
    return (
        f"{1 - eight / (2 * whole):.0%} of fp32 and {1 - eight / whole:.0%} of 16 bits for "
        "Llama-3-8B, as embedding and head stay"
    )


@claim
def logits(planned: Planned) -> str:
    model = planned("Llama-3-8B")
    way = Training(tokens=8192, checkpointing="full")
    memory = training_memory(model.architecture, model.inventory, way)
    figures = {figure.name: figure.bytes / 1e9 for figure in memory.gpu}
    few = figures["activations"]
    return (
        f"logits of 8192 tokens keep {figures['logits']:.1f} GB, the checkpoints of all blocks "
        f"{few:.1f} GB"
    )


@claim
def decoding_8b(planned: Planned) -> str:
    model, gpu = planned("Llama-3-8B"), find_gpu("4090")
    sizes = weights(model, "gptq-compressed", group_size=128), weights(model)
    bounds = (decode_bound(size, 0, 1, gpu.bandwidth or 0).tokens_per_second for size in sizes)
    return "at most {:.0f} and {:.0f} tok/s for 8B, by bandwidth alone".format(*bounds)


@claim
def llama_405b_on_four(planned: Planned) -> str:
    model = planned("Llama-3.1-405B")
    plain, eight, four = (
        size / 1e9
        for size in (
            weights(model),
            weights(model, "w8a16"),
            weights(model, "gptq-compressed", group_size=128),
        )
    )
    room = 4 * find_gpu("h100").memory / 1e9
    assert eight > room > four
    return (
        f"{plain:.1f} GB in 16 bits and {eight:.0f} GB in 8 do not fit {room:.0f} GB, "
        f"{four:.1f} GB in 4 do"
    )


@claim
def eight_4090s(_planned: Planned) -> str:
    cards = ((find_gpu("4090"), 8), (find_gpu("h100"), 4))
    memory = " against ".join(f"{n * card.memory / 1e9:.0f}" for card, n in cards)
    bandwidth = " against ".join(f"{n * (card.bandwidth or 0) / 1e12:.1f}" for card, n in cards)
    rate = " against ".join(f"{n * card.rates['bf16'] / 1e15:.1f}" for card, n in cards)
    return f"{memory} GB, {bandwidth} TB/s, {rate} PFLOP/s"


@claim
def h100_figures(_planned: Planned) -> str:
    gpu = find_gpu("h100")
    assert find_gpu("4090").nvlink is None
    return (
        f"{(gpu.bandwidth or 0) / 1e12:.2f} TB/s, {gpu.rates['bf16'] / 1e12:.0f} TFLOP/s, "
        f"PCIe 5 {(gpu.pcie or 0) / 1e9:.0f} GB/s each way"
    )


@pytest.mark.parametrize("sentence", CLAIMS, ids=lambda function: function.__name__)
def test_the_page_says_what_planning_computes(planned: Planned, sentence: Claim) -> None:
    assert sentence(planned) in PAGE


def test_states_are_16_bytes_and_the_fp32_copy_is_why(planned: Planned) -> None:
    model = planned("Llama-3-8B")
    mixed = sum(states(model).values()) / parameters(model)
    assert mixed == 4 + 4 + 8 == 16  # as much as fp32 weights, gradients and moments


def test_nothing_is_kept_without_a_backward_pass(planned: Planned) -> None:
    """Serving's peak does not grow with depth, a training step's does."""
    model = planned("Llama-3-8B")
    half = replace(model.architecture, layers=model.architecture.layers[:16])
    assert activation_peak(half, 4096, 1) == activation_peak(model.architecture, 4096, 1)
    kept = [
        saved_activations(a, model.inventory, 4096)[0].bytes for a in (half, model.architecture)
    ]
    assert kept[1] > 1.9 * kept[0]


def test_grouped_heads_store_less_by_their_ratio(planned: Planned) -> None:
    few, all_ = (
        cache_bytes(planned("Llama-3-70B", num_key_value_heads=n).architecture, 1).bytes
        for n in (8, 64)
    )
    assert all_ == 8 * few


def test_what_transformers_and_torch_no_longer_have(tiny_checkpoint: Callable[..., Path]) -> None:
    from transformers import AutoModelForCausalLM

    with pytest.raises(TypeError, match="load_in_4bit"):
        AutoModelForCausalLM.from_pretrained(tiny_checkpoint(), load_in_4bit=True)
    assert find_spec("torch.utils.bottleneck") is None


def test_every_row_has_a_verdict() -> None:
    rows = re.findall(r"^\| (?!claim|---)(.+?) \| (.+?) \| (.+?) \|$", PAGE, re.MULTILINE)
    assert len(rows) > 35
    assert {verdict for _, verdict, _ in rows} == {"right", "half right", "wrong", "not checkable"}
