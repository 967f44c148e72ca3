"""A model four times larger than all the memory that the process may have."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from quantkit.checkpoint.shards import TensorSpec, plan_shards

LIMIT = 640 << 20
BLOCKS, WIDTH, INNER, VOCABULARY = 81, 1024, 4096, 256

CHILD = """
import json, resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_DATA, (int(sys.argv[2]), int(sys.argv[2])))
from quantkit.calibration.tokens import load_tokenizer
from quantkit.eval.side_by_side import evaluate_together
from quantkit.eval.text import TextChoice
from quantkit.eval.windows import read_text
from quantkit.model.open import open_model
from quantkit.pipeline.measure import peak_rss

folder = Path(sys.argv[1])
text = read_text(TextChoice(sequence_length=16, windows=2), load_tokenizer(folder))
found, _ = evaluate_together(open_model(folder), open_model(folder), text)
print(json.dumps([found.perplexity.value, found.kl.mean, peak_rss()]))
"""


@pytest.fixture
def large_model(tmp_path: Path) -> Path:
    """A folder of 81 blocks in bf16, all zero: files with holes, read in full all the same."""
    import transformers

    from tests.conftest import byte_tokenizer

    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=BLOCKS,
        num_attention_heads=8,
        num_key_value_heads=8,
        tie_word_embeddings=False,
        dtype="bfloat16",
    )
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    square, up, down = (WIDTH, WIDTH), (INNER, WIDTH), (WIDTH, INNER)
    shapes = {f"self_attn.{x}_proj.weight": square for x in "qkvo"}
    shapes |= {"mlp.gate_proj.weight": up, "mlp.up_proj.weight": up, "mlp.down_proj.weight": down}
    norms = ("input_layernorm.weight", "post_attention_layernorm.weight")
    shapes |= dict.fromkeys(norms, (WIDTH,))  # type: ignore[arg-type]  # of one dimension
    names = {f"model.layers.{i}.{name}": s for i in range(BLOCKS) for name, s in shapes.items()}
    names |= {
        "model.embed_tokens.weight": (VOCABULARY, WIDTH),
        "lm_head.weight": (VOCABULARY, WIDTH),
    }
    names |= {"model.norm.weight": (WIDTH,)}  # type: ignore[dict-item]  # of one dimension
    (shard,) = plan_shards([TensorSpec(n, "BF16", s) for n, s in names.items()], 1 << 40)
    with (tmp_path / shard.name).open("wb") as file:
        file.write(shard.head)
        file.truncate(shard.nbytes)
    return tmp_path


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts all memory on Linux alone")
def test_two_models_of_four_times_the_memory_are_compared(large_model: Path) -> None:
    assert (large_model / "model.safetensors").stat().st_size > 4 * LIMIT
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(large_model), str(LIMIT)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    perplexity, kl, peak = json.loads(done.stdout)
    assert perplexity == pytest.approx(245)  # nothing is known: one of the tokens that exist
    assert kl == 0
    assert peak < LIMIT
