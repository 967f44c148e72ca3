"""Peak memory of whole runs, evaluation included: by depth, under a limit, and of a large model.

    python benchmarks/ceiling.py FOLDER depth     # Llamas of 4, 16 and 64 equal blocks
    python benchmarks/ceiling.py FOLDER limit     # --max-ram at 60 % of the working memory
    python benchmarks/ceiling.py FOLDER large     # weights of 4 times the limit, then `eval`

Each run is `quantkit` in a process of its own, whose peak is taken from outside (`measure.py`).
Working memory is what the run takes above Python with torch and the opened model, its
`base_rss_bytes`. Files of two runs are compared by SHA-256.  OMP_NUM_THREADS counts as everywhere.
"""

import argparse
import hashlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from measure import measure

SHARE = 0.6
TIMES = 4
LARGE_LIMIT = 640 * 10**6


def make(folder: Path, blocks: int, hidden: int, inner: int, context: int) -> int:
    """Write a bf16 Llama of equal random blocks, each in a file of its own; its bytes."""
    import torch
    from safetensors.torch import save_file
    from transformers import LlamaConfig

    from quantkit.model.embedded_model import FOLDER

    config = LlamaConfig.from_pretrained(
        FOLDER,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=blocks,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 128,
        head_dim=64,
        max_position_embeddings=context,
        tie_word_embeddings=False,
        dtype="bfloat16",
    )
    config.save_pretrained(folder)
    for path in FOLDER.glob("tokenizer*"):
        shutil.copy(path, folder)
    torch.manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return (torch.randn(shape) * shape[-1] ** -0.5).bfloat16()

    ones = torch.ones(hidden, dtype=torch.bfloat16)
    block = {f"self_attn.{n}_proj": drawn(hidden, hidden) for n in "qo"}
    block |= {f"self_attn.{n}_proj": drawn(hidden // 2, hidden) for n in "kv"}
    block |= {f"mlp.{n}_proj": drawn(inner, hidden) for n in ("gate", "up")}
    block |= {"mlp.down_proj": drawn(hidden, inner)}
    block |= {"input_layernorm": ones, "post_attention_layernorm": ones.clone()}
    ends = {n: drawn(config.vocab_size, hidden) for n in ("model.embed_tokens", "lm_head")}
    files = {"ends.safetensors": ends | {"model.norm": ones.clone()}}
    for i in range(blocks):
        named = {f"model.layers.{i}.{name}": tensor for name, tensor in block.items()}
        files[f"block-{i}.safetensors"] = named
    index = {}
    for file, tensors in files.items():
        named = {f"{name}.weight": tensor for name, tensor in tensors.items()}
        save_file(named, folder / file, metadata={"format": "pt"})
        index |= dict.fromkeys(named, file)
    text = json.dumps({"metadata": {"total_size": 1}, "weight_map": index})
    (folder / "model.safetensors.index.json").write_text(text)
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def model_of(folder: Path, *shape: int) -> tuple[Path, int]:
    """A model of a shape (blocks, hidden, inner, context), made once, and its bytes."""
    found = folder / ("llama-" + "-".join(map(str, shape)))
    if not found.exists():
        make(found, *shape)
    return found, sum(path.stat().st_size for path in found.glob("*.safetensors"))


def run(arguments: list[str], log: Path) -> dict[str, Any]:
    """Figures of `quantkit` with these arguments: those from outside, and what it says itself."""
    command = [sys.executable, "-m", "quantkit", *arguments, "--json", "--quiet"]
    found = measure(command, log)
    if found["exit_code"] not in (0, 3):
        raise SystemExit(log.read_text())
    return {**found, "said": json.loads(log.read_text())}


def quantize(model: Path, output: Path, flags: list[str], limit: int = 0) -> dict[str, Any]:
    """A whole run with the default evaluation; `limit` in bytes."""
    shutil.rmtree(output, ignore_errors=True)
    bound = ["--max-ram", f"{limit}B"] if limit else []
    log = output.with_suffix(".log")
    return run(["quantize", str(model), "-o", str(output), *flags, *bound, "--device", "cpu"], log)


def hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of the weights and of the evaluation."""
    paths = [*folder.glob("*.safetensors"), folder / "eval.json"]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def line(name: str, found: dict[str, Any]) -> str:
    """Peak and time of a run, and how it held its activations."""
    planned = found["said"].get("planned", {})
    run, judged = (planned.get(f"{k}_rss_bytes", 0) / 1e6 for k in ("peak", "evaluation"))
    peak, wall, cpu = (found[k] for k in ("peak_rss_bytes", "wall_seconds", "cpu_seconds"))
    plan = f" (planned {run:.0f}, in the evaluation {judged:.0f})" if planned else ""
    return f"{name:28} peak {peak / 1e6:6.0f} MB{plan}, {wall:.0f} s, CPU {cpu:.0f} s"


def depth(folder: Path) -> None:
    """Peaks of models of 4, 16 and 64 equal blocks."""
    peaks = []
    for blocks in (4, 16, 64):
        model, size = model_of(folder, blocks, 256, 1024, 256)
        flags = ["--samples", "32", "--sequence-length", "256"]
        found = quantize(model, folder / f"depth-{blocks}", flags)
        peaks.append(found["peak_rss_bytes"])
        print(line(f"{blocks} blocks, {size / 1e6:.0f} MB", found), flush=True)
    print(f"from 16 to 64 blocks: {peaks[2] / peaks[1] - 1:+.1%}")


def limit(folder: Path) -> None:
    """A run with all memory, and under SHARE of what that took."""
    model, _ = model_of(folder, 4, 512, 2048, 256)
    flags = ["--method", "nf4", "--samples", "128", "--sequence-length", "256"]
    free = quantize(model, folder / "free", flags)
    print(line("all memory", free), flush=True)
    base = free["said"]["planned"]["base_rss_bytes"]
    most = round(base + SHARE * (free["peak_rss_bytes"] - base))
    bound = quantize(model, folder / "bound", flags, most)
    print(line(f"--max-ram {most / 1e6:.0f} MB", bound))
    same = hashes(folder / "free") == hashes(folder / "bound")
    kept = bound["peak_rss_bytes"] < most
    print("the limit is kept" if kept else "the limit is NOT kept", "and the bytes are", end=" ")
    print("equal" if same else "NOT equal")


def large(folder: Path) -> None:
    """A model of TIMES the limit, quantized, evaluated, and evaluated once more by `eval`."""
    model, size = model_of(folder, 146, 1024, 2048, 64)
    if size < TIMES * LARGE_LIMIT:
        raise SystemExit(f"{size} bytes are too few")
    flags = ["--samples", "8", "--sequence-length", "64", "--set", "options.search=false"]
    output = folder / "large"
    found = quantize(model, output, ["--method", "rtn", *flags], LARGE_LIMIT)
    print(line(f"{size / 1e6:.0f} MB in {LARGE_LIMIT / 1e6:.0f} MB", found), flush=True)
    bound = ["--max-ram", f"{LARGE_LIMIT}B", "--device", "cpu", "--windows", "4"]
    again = run(["eval", str(output), "--reference", str(model), *bound], folder / "eval.log")
    print(line("eval", again))
    kept = max(found["peak_rss_bytes"], again["peak_rss_bytes"]) < LARGE_LIMIT
    print(f"the limit is {'kept' if kept else 'NOT KEPT'}")


def main() -> None:
    """Run the parts that are named, in their order."""
    parts = {"depth": depth, "limit": limit, "large": large}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="for models and artifacts; kept")
    parser.add_argument("parts", nargs="+", choices=parts)
    args = parser.parse_args()
    args.folder.mkdir(exist_ok=True)
    for name in args.parts:
        parts[name](args.folder)


if __name__ == "__main__":
    main()
