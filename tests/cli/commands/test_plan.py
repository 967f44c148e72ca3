"""The verb as people run it: on folders, on configs, on the hub, and without torch."""

import json
import math
import re
import shlex
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import quantkit as package
from quantkit.core.errors import InputError
from tests.cli.conftest import LLAMA_8B

Call = Callable[..., tuple[int, str, str]]
EMBEDDED = Path(package.__file__).parent / "model" / "embedded"


def test_without_a_gpu_parts_and_builds_are_told(quantkit: Call) -> None:
    code, out, _ = quantkit("plan", str(EMBEDDED))
    assert code == 0
    assert "embedded: llama" in out
    assert "(from safetensors headers)" in out
    assert "GB are 10^9 bytes" in out
    assert "GiB " not in out.replace("count GiB", "")
    for word in ("embedding", "attention", "bf16", "(gptq)", "(smoothquant)", "(nf4-double)"):
        assert word in out


def test_with_one_a_table_a_bar_and_a_verdict(quantkit: Call, llama: str) -> None:
    code, out, _ = quantkit("plan", llama, "--gpu", "4090", "--context", "32k", "--batch", "2")
    assert code == 0
    lines = out.splitlines()
    assert "4090" in lines[1]
    assert "2 x 32,768 tokens" in lines[1]
    rows = {line.split("  ")[0]: line for line in lines}
    assert "over" in rows["bf16"]
    assert "yes" in rows["W4 g128 sym (gptq)"]
    assert "refused" in rows["NF4 g64 double (nf4-double)"]
    (drawn,) = [line for line in lines if line.startswith("[")]
    assert [drawn.count(c) > 0 for c in "WoK.|"] == [True] * 5
    assert lines[-1].startswith("next: quantkit quantize")
    assert max(map(len, lines)) <= 130


def test_the_document_holds_every_figure_with_its_rule(quantkit: Call, llama: str) -> None:
    code, out, _ = quantkit("plan", llama, "--gpu", "4090", "--json")
    document = json.loads(out)
    assert code == 0
    assert (document["gpu"]["name"], document["fits"]) == ("RTX 4090 24GB", True)
    build = document["builds"][0]
    assert (build["build"], build["bytes"]) == ("bf16", 16_060_522_496)
    figures = {figure["name"]: figure["bytes"] for figure in build["figures"]}
    budget = figures.pop("budget")
    assert sum(figures.values()) == build["rank"]["total"] <= budget
    assert all(figure["rule"] for figure in build["figures"])


def test_explain_prints_the_rules(quantkit: Call, llama: str) -> None:
    _, out, _ = quantkit("plan", llama, "--gpu", "4090", "--explain")
    for rule in ("2048 tokens * (4 * 4096 + 86016)", "blocks of 16 tokens", "0.92 of", "at most"):
        assert rule in out


def test_without_a_gpu_the_rules_are_those_of_the_weights(quantkit: Call, llama: str) -> None:
    _, out, _ = quantkit("plan", llama, "--explain")
    lines = [line for line in out.splitlines() if "sum over" in line]
    told = {tuple(re.split("  +", line)[:2]): line for line in lines}
    assert "11,274,289,152" in told["bf16", "mlp"]
    assert "as gptq stores W4 g128 sym" in told["W4 g128 sym (gptq)", "mlp"]


def test_flags_say_what_the_build_would_be(quantkit: Call, llama: str) -> None:
    flags = ["--recipe", "rtn", "--bits", "3", "--set", "scheme.group_size=64"]
    flags += ["--set", "format=compressed-tensors"]
    _, out, _ = quantkit("plan", llama, *flags, "--json")
    assert [b["build"] for b in json.loads(out)["builds"]] == ["bf16", "W3 g64 sym (rtn)"]
    setting = "overrides=[{match: '*.down_proj', skip: true}]"
    _, out, _ = quantkit("plan", llama, "--recipe", "gptq", "--set", setting, "--json")
    kept = 32 * 4096 * 14336 * 2
    assert json.loads(out)["builds"][1]["parts"]["mlp"] > kept


def test_settings_go_to_the_engine(quantkit: Call, llama: str) -> None:
    options = ["--gpu", "80GB", "--set", "utilization=0.5", "--set", "graphs=0", "--set", "pp=2"]
    document = json.loads(quantkit("plan", llama, *options, "--json")[1])
    assert document["degrees"] == {"tensor": 1, "pipeline": 2, "expert": 1}
    assert document["builds"][0]["rank"]["budget"] == 40 * 10**9
    names = {figure["name"] for figure in document["builds"][0]["figures"]}
    assert "CUDA graphs" not in names
    assert "NCCL" in names


def test_a_gate_on_memory_ends_in_3(quantkit: Call, llama: str) -> None:
    options = ("--gpu", "24GB", "--bits", "4", "--kv", "8", "--fail-over")
    assert quantkit("plan", llama, *options, "24GB")[0] == 0
    code, _, error = quantkit("plan", llama, *options, "4GiB")
    assert code == 3
    assert "more than 4.29 GB (4,294,967,296)" in error
    assert quantkit("plan", llama, "--fail-over", "16GB")[0] == 3  # as it is
    assert quantkit("plan", llama, "--bits", "4", "--fail-over", "16GB")[0] == 0


def test_a_gate_may_be_the_gpu_itself(quantkit: Call, llama: str) -> None:
    options = ("--gpu", "4090", "--bits", "4", "--fail-over", "gpu", "--batch")
    code, _, told = quantkit("plan", llama, *options, "1")
    assert (code, "no more than the GPU provides" in told) == (0, True)
    code, _, told = quantkit("plan", llama, *options, "64")
    assert (code, ", more than the GPU provides" in told) == (3, True)
    school = ("--train", "full", "--context", "2k", "--gpu", "4090", "--fail-over", "gpu")
    assert quantkit("plan", llama, *school)[0] == 3
    assert quantkit("plan", llama, "--fail-over", "gpu")[0] == 2


def test_bits_between_are_fits_to_find(quantkit: Call, llama: str) -> None:
    def offers(*options: str) -> str | None:
        found = re.search(r"^or: (quantkit fit .*)$", quantkit("plan", llama, *options)[1], re.M)
        return found and found[1]

    load = ("--context", "32k", "--batch", "3")
    offered = offers("--gpu", "4090", *load)
    assert offered is not None
    assert shlex.split(offered)[5:] == [
        "--gpu",
        "RTX 4090 24GB",
        "--context",
        "32768",
        "--batch",
        "3",
    ]
    assert offers("--gpu", "h100", *load) is None  # as it is
    assert offers("--gpu", "8GB", *load) is None  # nothing


@pytest.mark.parametrize(
    ("options", "code", "hint"),
    [
        (("--gpu", "4091"), 2, "RTX 4090 24GB"),
        (("--gpu", "4090", "--tp", "3"), 4, "--tp 2"),
        (("--gpu", "4090", "--engine", "vlm"), 2, "vllm"),
        (("--gpu", "4090", "--context", "much"), 2, "32k"),
        (("--gpu", "4090", "--kv", "4"), 2, "--kv 16"),
        (("--gpu", "4090", "--kv", "8", "--engine", "transformers"), 2, "--engine vllm"),
        (("--gpu", "4090", "--set", "pp=two"), 2, "pp=2"),
        (("--gpu", "4090", "--batch", "0"), 2, "--help"),
        (("--gpu", "4090", "--batch", "9" * 20), 2, "--batch 8"),
        (("--gpu", "4090", "--context", "1M"), 4, "--context 131072"),
        (("--gpu", "4090", "--set", "ep=8"), 4, "ep=1"),
        (("--gpus", "4"), 2, "--train"),
        (("--zero", "3"), 2, "--train"),
        (("--set", "rank=8"), 2, "--train"),
        (("--train", "full", "--tp", "2"), 2, "without --tp"),
        (("--train", "full", "--kv", "8"), 2, "--kv"),
        (("--train", "full", "--bits", "4"), 2, "--bits"),
        (("--train", "full", "--engine", "vllm"), 2, "without --engine"),
        (("--train", "full", "--set", "pp=2"), 2, "without --set pp"),
        (("--train", "full", "--set", "chunk=512"), 2, "without --set of an engine"),
        (("--train", "full", "--set", "rank=8"), 2, "--train lora"),
        (("--train", "ful"), 2, "--train full"),
        (("--train", "lora", "--set", "optimizer=sgd"), 2, "--set optimizer=adamw"),
        (("--context", "8k"), 2, "--gpu 4090"),
        (("--batch", "4"), 2, "--gpu 4090"),
        (("--engine", "vllm"), 2, "--gpu 4090"),
        (("--tp", "2"), 2, "--gpu 4090"),
        (("--kv", "8"), 2, "--gpu 4090"),
        (("--set", "ep=2"), 2, "--gpu 4090"),
        (("--set", "chunk=512"), 2, "--gpu 4090"),
        (("--gpu", "4090", "--explain", "--against", "x/y"), 2, "without --against"),
        (("--gpu", "4090", "--set", "pp=99"), 2, "--set pp=32"),
        (("--set", "options.damping=1"), 2, "--set options.damp=0.05"),
        (("--set", "options.damp=much"), 2, "--set options.damp=0.05"),
        (("--set", "options.damp=-1"), 2, "--set options.damp=0.05"),
        (("--recipe", "smoothquant", "--set", "options.alpha=2"), 2, "without --set options"),
        (("--recipe", "smoothquant", "--bits", "4"), 4, "--bits 8"),
        (("--set", "method=nf4"), 4, "--set scheme.grid=nf4"),
        (("--fail-over", "24"), 2, "--fail-over 24GB"),
        (("--fail-over", "much"), 2, "--fail-over 5GB"),
        (
            (
                "--gpu",
                "local",
            ),
            4,
            "--gpu 4090",
        ),
    ],
)
def test_what_is_wrong_is_said_with_a_remedy(
    quantkit: Call,
    llama: str,
    options: tuple[str, ...],
    code: int,
    hint: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no nvidia-smi
    found, _, error = quantkit("plan", llama, *options)
    assert found == code
    assert hint in error.partition("try: ")[2]


def test_a_bar_that_is_too_short_says_so(quantkit: Call, llama: str) -> None:
    _, out, _ = quantkit("plan", llama, "--gpu", "10GB", "--context", "128k")
    (drawn,) = [line for line in out.splitlines() if line.startswith("[")]
    assert drawn.endswith(">]")
    assert "no build fits" in out
    assert "try: --context" in out


def test_a_training_run_is_told_part_by_part(quantkit: Call, llama: str) -> None:
    options = ("--gpu", "4090", "--train", "qlora", "--context", "2k", "--checkpointing", "full")
    code, out, _ = quantkit("plan", llama, *options)
    assert code == 0
    assert "fits: " in out
    for name in ("weights", "moments", "activations", "logits", "CUDA context"):
        assert f"\n{name}" in out
    code, out, _ = quantkit("plan", llama, *options, "--json", "--set", "rank=64")
    training = json.loads(out)["training"]
    assert (training["method"], training["rank"], training["tokens"]) == ("qlora", 64, 2048)
    assert training["fits"]
    assert {figure["name"] for figure in training["gpu"]} > {"weights", "gradients"}


def test_a_training_run_names_its_gpu_and_what_the_host_needs(quantkit: Call, llama: str) -> None:
    ways = ("--train", "full", "--gpus", "4", "--zero", "3", "--offload", "cpu", "--context", "2k")
    _, out, _ = quantkit("plan", llama, *ways, "--gpu", "rtx 4090")
    assert "full, 4 x RTX 4090 24GB (25.3 GB), zero 3" in out
    _, text, _ = quantkit("plan", llama, *ways, "--gpu", "rtx 4090", "--json")
    document = json.loads(text)
    assert document["gpu"]["name"] == "RTX 4090 24GB"
    share = sum(figure["bytes"] for figure in document["training"]["cpu"])
    assert share
    assert document["training"]["host"] == {"RAM": 4 * share, "disk": 0}
    assert f"\nRAM of all 4 together: {4 * share / 10**9:.1f} GB\n" in out
    _, out, _ = quantkit("plan", llama, *ways)
    assert "full, 4 GPUs, zero 3" in out


def test_a_training_run_that_does_not_fit_says_what_takes_less(quantkit: Call, llama: str) -> None:
    ways = ("--gpus", "8", "--zero", "2", "--offload", "cpu")
    code, out, _ = quantkit("plan", llama, "--gpu", "4090", "--train", "full", *ways)
    assert code == 0
    assert "does not fit" in out
    assert "  RAM  " in out
    hints = [line.removeprefix("try: ") for line in out.splitlines() if "try: " in line]
    again = [*ways, *hints[0].split()]  # the last of each option counts
    code, out, _ = quantkit("plan", llama, "--gpu", "4090", "--train", "full", *again, "--json")
    assert json.loads(out)["training"]["fits"]
    _, out, _ = quantkit("plan", llama, "--gpu", "4090", "--train", "full", *ways, "--json")
    assert json.loads(out)["try"] == hints
    assert quantkit("plan", llama, "--train", "full", "--fail-over", "80GB")[0] == 3
    assert quantkit("plan", llama, "--train", "full", "--zero", "4")[0] == 2
    assert quantkit("plan", llama, "--train", "full", "--offload", "nvme")[0] == 4


def test_the_next_command_makes_the_build_that_was_planned(quantkit: Call, tmp_path: Path) -> None:
    folder = tmp_path / "a model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA_8B))
    flags = ["--bits", "8", "--set", "scheme.group_size=64"]
    _, out, _ = quantkit("plan", str(folder), "--gpu", "4090", *flags)
    command = shlex.split(out.splitlines()[-1].removeprefix("next: "))
    assert command[:5] == ["quantkit", "quantize", str(folder), "-o", "OUT"]
    assert command[5:] == ["--recipe", "gptq", "--bits", "8", "--group-size", "64"]


def test_a_bar_of_any_load_is_as_long(quantkit: Call, llama: str) -> None:
    _, out, _ = quantkit("plan", llama, "--gpu", "1GB", "--batch", "65536", "--context", "128k")
    (drawn,) = [line for line in out.splitlines() if line.startswith("[")]
    assert len(drawn) == 64
    assert "offloaded" not in out  # which vLLM does not do


def sparse_checkpoint(folder: Path, layers: int, experts: int, shards: int) -> int:
    """A model of DeepSeek-V3's shape in bf16, its data holes in the files; how many tensors."""
    hidden, width = 7168, 2048
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (129280, hidden),
        "lm_head.weight": (129280, hidden),
        "model.norm.weight": (hidden,),
    }
    attention = {
        "q_a_proj": (1536, hidden),
        "q_a_layernorm": (1536,),
        "q_b_proj": (24576, 1536),
        "kv_a_proj_with_mqa": (576, hidden),
        "kv_a_layernorm": (512,),
        "kv_b_proj": (32768, 512),
        "o_proj": (hidden, 16384),
    }
    for layer in range(layers):
        block = f"model.layers.{layer}."
        shapes |= {f"{block}self_attn.{name}.weight": shape for name, shape in attention.items()}
        shapes |= {f"{block}{n}_layernorm.weight": (hidden,) for n in ("input", "post_attention")}
        parts = {f"mlp.experts.{i}": width for i in range(experts if layer >= 3 else 0)}
        parts |= {"mlp.shared_experts": width} if layer >= 3 else {"mlp": 18432}
        for name, size in parts.items():
            shapes |= {f"{block}{name}.{n}_proj.weight": (size, hidden) for n in ("gate", "up")}
            shapes[f"{block}{name}.down_proj.weight"] = (hidden, size)
        if layer >= 3:
            shapes[f"{block}mlp.gate.weight"] = (experts, hidden)
            shapes[f"{block}mlp.gate.e_score_correction_bias"] = (experts,)
    names, weight_map = list(shapes), {}
    per = -(-len(names) // shards)
    for shard in range(shards):
        file, at, header = f"model-{shard + 1:05}-of-{shards:05}.safetensors", 0, {}
        for name in names[shard * per : (shard + 1) * per]:
            end = at + 2 * math.prod(shapes[name])
            header[name] = {"dtype": "BF16", "shape": shapes[name], "data_offsets": (at, end)}
            weight_map[name], at = file, end
        raw = json.dumps(header).encode()
        with (folder / file).open("wb") as handle:
            handle.write(struct.pack("<Q", len(raw)) + raw)
            handle.truncate(8 + len(raw) + at)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    known = Path(__file__).parents[2] / "planning" / "known_models.json"
    (config,) = [m["config"] for m in json.loads(known.read_text()) if m["name"] == "DeepSeek-V3"]
    config |= {"num_hidden_layers": layers, "max_position_embeddings": 163840}
    (folder / "config.json").write_text(json.dumps(config))
    return len(shapes)


TIMED = """
import sys, time
from quantkit.cli.main import run
assert run(sys.argv[1:]) == 0
heavy = {"torch", "transformers", "numpy", "safetensors", "scipy", "huggingface_hub"}
loaded = heavy & set(sys.modules)
print(time.process_time(), sorted(loaded), file=sys.stderr)
"""


def least_seconds(child: Any, options: list[str], bound: float) -> tuple[float, str]:
    """CPU seconds of the quickest of up to five runs, for cores that others share, and its text."""
    quickest, said = float("inf"), ""
    for _ in range(5):
        done = child(["-c", TIMED, "plan", *options])
        assert done.returncode == 0, done.stderr
        said = done.stdout
        seconds, _, loaded = done.stderr.strip().partition(" ")
        assert loaded == "[]"
        quickest = min(quickest, float(seconds))
        if quickest < bound:
            break
    return quickest, said


def test_671b_in_163_files_within_seconds_and_without_torch(tmp_path: Path, child: Any) -> None:
    """45,000 tensors here."""
    folder = tmp_path / "v3"
    folder.mkdir()
    assert sparse_checkpoint(folder, 61, 256, 163) > 45_000
    options = ["--gpu", "h200", "--tp", "8", "--context", "32k", "--batch", "8", "--explain"]
    seconds, said = least_seconds(child, [str(folder), *options], 5)
    assert seconds < 5  # 1.0 to 1.3 on an idle machine
    assert "deepseek_v3, 671,026,404,352 parameters" in said
    shutil.rmtree(folder)


def test_70b_from_its_config_without_torch(tmp_path: Path, child: Any) -> None:
    config = LLAMA_8B | {
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    options = ["--gpu", "4090", "--tp", "2", "--context", "4k"]
    seconds, said = least_seconds(child, [str(tmp_path / "config.json"), *options], 2)
    assert seconds < 2  # 0.9 to 1.2 on an idle machine
    assert "70,553,706,496 parameters" in said


def test_the_function_gives_what_the_command_shows(llama: str) -> None:
    found = package.plan(llama, gpu="4090", context=32768, batch=2)
    assert found.serving is not None
    assert found.serving.chosen is not None
    assert found.recipe.name == "smoothquant"
    assert found.serving.chosen.name == "W8A8 channel sym (smoothquant)"
    with pytest.raises(InputError):
        package.plan(llama, gpu="4090", settings={"nothing": "1"})
