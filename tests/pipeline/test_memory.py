"""Peak memory does not grow with depth."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, Qwen3MoeConfig, Qwen3MoeForCausalLM

from tests.conftest import byte_tokenizer

WIDE, NARROW = 2048, 512
BLOCK = {
    "self_attn.q_proj": (NARROW, NARROW),
    "self_attn.k_proj": (256, NARROW),
    "self_attn.v_proj": (256, NARROW),
    "self_attn.o_proj": (NARROW, NARROW),
    "mlp.gate_proj": (WIDE, NARROW),
    "mlp.up_proj": (WIDE, NARROW),
    "mlp.down_proj": (NARROW, WIDE),
    "input_layernorm": (NARROW,),
    "post_attention_layernorm": (NARROW,),
}
ENDS = {
    "model.embed_tokens.weight": (256, NARROW),
    "lm_head.weight": (256, NARROW),
    "model.norm.weight": (NARROW,),
}
RUN = """
import sys, quantkit
# the loop is the same for every method, and plain rounding is the fastest
r = quantkit.build_recipe("rtn", samples=4, sequence_length=64, settings=["options.search=false"])
found = quantkit.quantize(sys.argv[1], sys.argv[2], recipe=r)
assert found.evaluation
print(found.cost.peak_rss_bytes)
"""


def write(folder: Path, blocks: int, context: int = 256) -> None:
    """A random model of equal blocks, each in a file of its own."""
    config = LlamaConfig(
        hidden_size=NARROW,
        intermediate_size=WIDE,
        num_hidden_layers=blocks,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=256,
        max_position_embeddings=context,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=False,
        architectures=["LlamaForCausalLM"],
        dtype="bfloat16",
    )
    config.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    files = {"ends.safetensors": ENDS}
    for i in range(blocks):
        named = {f"model.layers.{i}.{name}.weight": shape for name, shape in BLOCK.items()}
        files[f"block-{i}.safetensors"] = named
    for name, shapes in files.items():
        tensors = {
            n: (torch.randn(s) * 0.02 if len(s) > 1 else torch.ones(s)).bfloat16()
            for n, s in shapes.items()
        }
        save_file(tensors, folder / name, metadata={"format": "pt"})
    index = {tensor: name for name, shapes in files.items() for tensor in shapes}
    text = json.dumps({"metadata": {"total_size": 1}, "weight_map": index})
    (folder / "model.safetensors.index.json").write_text(text)


@pytest.mark.long
def test_peak_memory_of_4_and_24_equal_blocks_is_the_same(tmp_path: Path) -> None:
    peaks, sizes = [], []
    for blocks in (4, 24):
        model = tmp_path / f"model-{blocks}"
        write(model, blocks, context=64)
        command = [sys.executable, "-c", RUN, str(model), str(tmp_path / f"out-{blocks}")]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        peaks.append(int(done.stdout.splitlines()[-1]))
        sizes.append(sum(file.stat().st_size for file in model.glob("*.safetensors")))
    assert sizes[1] - sizes[0] > 0.2 * peaks[0], "the models are too small to tell"
    assert peaks[1] < 1.05 * peaks[0]


EXPERTS_RUN = """
import sys, quantkit
r = quantkit.build_recipe("rtn", samples=16, sequence_length=256, settings=["options.search=false"])
found = quantkit.quantize(sys.argv[1], sys.argv[2], recipe=r, evaluate=False)
print(found.planned["peak_rss_bytes"], found.measured["peak_rss_bytes"])
"""


@pytest.mark.long
def test_peak_memory_of_128_experts_is_planned_and_holds_the_statistics_of_one(
    tmp_path: Path,
) -> None:
    """Statistics of all of them at once would take 0.6 GB more."""
    config = Qwen3MoeConfig(
        hidden_size=NARROW,
        moe_intermediate_size=256,
        num_experts=128,
        num_experts_per_tok=8,
        num_hidden_layers=1,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=256,
        max_position_embeddings=256,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=False,
    )
    model = Qwen3MoeForCausalLM(config)
    model.bfloat16().save_pretrained(tmp_path / "model")
    byte_tokenizer().save_pretrained(tmp_path / "model")
    command = [sys.executable, "-c", EXPERTS_RUN, str(tmp_path / "model"), str(tmp_path / "out")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    planned, measured = map(int, done.stdout.split()[-2:])
    assert 0.9 < planned / measured < 1.1


LIMITED_RUN = """
import json, sys, quantkit
model, out, most = sys.argv[1:]
r = quantkit.build_recipe("nf4", samples=120, sequence_length=256)
said = []
report = lambda progress: progress.stage == "plan" and said.append(progress.detail)
found = quantkit.quantize(model, out, recipe=r, max_ram=int(most) or None, report=report)
assert found.evaluation
figures = {**found.planned, "way": said[0], "peak": found.cost.peak_rss_bytes}
print(json.dumps({**figures, "measured": found.measured["peak_rss_bytes"]}))
"""


@pytest.mark.long
def test_a_limit_is_kept_by_replaying_forwards_and_by_a_file(tmp_path: Path) -> None:
    """30,720 tokens that wait hold 220 MB; their hidden states alone 31 MB."""
    write(tmp_path / "model", 1)

    def run(output: str, limit: int = 0) -> dict[str, Any]:
        arguments = [str(tmp_path / "model"), str(tmp_path / output), str(limit)]
        command = [sys.executable, "-c", LIMITED_RUN, *arguments]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        assert not limit or figures["peak"] < limit
        assert 0.9 < figures["peak_rss_bytes"] / figures["measured"] < 1.1
        return figures

    free = run("free")
    bound = run("bound", free["peak_rss_bytes"] - 50 * 10**6)
    tight = run("tight", bound["peak_rss_bytes"] + 10**6)  # less than a limit leaves unplanned
    assert [", activations replayed, " in each["way"] for each in (free, bound)] == [False, True]
    assert "activations replayed from disk" in tight["way"]
    assert free["measured"] - bound["measured"] > 70 * 10**6
    assert bound["measured"] - tight["measured"] > 20 * 10**6
    for name in ("model.safetensors", "eval.json"):
        made = {(tmp_path / out / name).read_bytes() for out in ("free", "bound", "tight")}
        assert len(made) == 1


LARGE_RUN = """
import sys, quantkit
model, out, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
r = quantkit.build_recipe("rtn", samples=0, settings=["options.search=false"])
base = quantkit.dry_run(model, recipe=r, device="cpu").memory.base_bytes
limit = int(1.05 * base) + size // 4
found = quantkit.quantize(model, out, recipe=r, device="cpu", max_ram=limit)
assert found.evaluation
again = quantkit.evaluate(out, reference=model, device="cpu", max_ram=limit)
from quantkit.pipeline.measure import peak_rss
print(limit, peak_rss())
"""


@pytest.mark.long
def test_a_model_of_four_times_what_a_limit_leaves_goes_through(tmp_path: Path) -> None:
    """The limit is what Python with torch holds, and a quarter of the weights; `eval` included."""
    model = tmp_path / "model"
    write(model, 40, context=32)
    size = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    command = [sys.executable, "-c", LARGE_RUN, str(model), str(tmp_path / "out"), str(size)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    limit, peak = map(int, done.stdout.split()[-2:])
    assert peak < limit
