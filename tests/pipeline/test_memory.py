"""Peak memory does not grow with depth."""

import subprocess
import sys
from pathlib import Path

import pytest

WRITE = """
import sys, json, torch
from pathlib import Path
from safetensors.torch import save_file
from transformers import LlamaConfig
sys.path.insert(0, sys.argv[3])
from conftest import byte_tokenizer
folder, blocks = Path(sys.argv[1]), int(sys.argv[2])
folder.mkdir()
wide, narrow = 2048, 512
config = LlamaConfig(
    hidden_size=narrow, intermediate_size=wide, num_hidden_layers=blocks, num_attention_heads=8,
    num_key_value_heads=4, vocab_size=256, max_position_embeddings=256, bos_token_id=0,
    eos_token_id=1, tie_word_embeddings=False, architectures=["LlamaForCausalLM"],
    dtype="bfloat16",
)
config.save_pretrained(folder)
byte_tokenizer().save_pretrained(folder)
def write(name, shapes):
    tensors = {
        n: (torch.randn(s) * 0.02 if len(s) > 1 else torch.ones(s)).bfloat16()
        for n, s in shapes.items()
    }
    save_file(tensors, folder / name, metadata={"format": "pt"})
    index.update(dict.fromkeys(tensors, name))
index = {}
write("ends.safetensors", {
    "model.embed_tokens.weight": (256, narrow), "lm_head.weight": (256, narrow),
    "model.norm.weight": (narrow,)})
block = {
    "self_attn.q_proj": (narrow, narrow), "self_attn.k_proj": (256, narrow),
    "self_attn.v_proj": (256, narrow), "self_attn.o_proj": (narrow, narrow),
    "mlp.gate_proj": (wide, narrow), "mlp.up_proj": (wide, narrow),
    "mlp.down_proj": (narrow, wide), "input_layernorm": (narrow,),
    "post_attention_layernorm": (narrow,)}
for i in range(blocks):
    shapes = {f"model.layers.{i}.{n}.weight": s for n, s in block.items()}
    write(f"block-{i}.safetensors", shapes)
(folder / "model.safetensors.index.json").write_text(
    json.dumps({"metadata": {"total_size": 1}, "weight_map": index}))
"""

RUN = """
import sys, quantkit
r = quantkit.build_recipe(None, method="gptq", samples=4, sequence_length=64)
found = quantkit.quantize(sys.argv[1], sys.argv[2], recipe=r, evaluate=False)
print(found.cost.peak_rss_bytes)
"""


@pytest.mark.long
def test_peak_memory_of_8_and_32_equal_blocks_is_the_same(tmp_path: Path) -> None:
    peaks, sizes = [], []
    for blocks in (8, 32):
        model, out = str(tmp_path / f"model-{blocks}"), str(tmp_path / f"out-{blocks}")
        here = str(__file__).rsplit("/", 2)[0]
        subprocess.run([sys.executable, "-c", WRITE, model, str(blocks), here], check=True)
        done = subprocess.run(
            [sys.executable, "-c", RUN, model, out], check=True, capture_output=True, text=True
        )
        peaks.append(int(done.stdout.splitlines()[-1]))
        sizes.append(sum(file.stat().st_size for file in Path(model).glob("*.safetensors")))
    assert sizes[1] - sizes[0] > 0.2 * peaks[0], "the models are too small to tell"
    assert peaks[1] < 1.1 * peaks[0]
