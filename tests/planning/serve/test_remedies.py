"""What `plan` proposes where something is refused, followed to the letter."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quantkit.api.planning import PLANNED_RECIPES
from quantkit.cli.main import run

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def quantkit(capsys: pytest.CaptureFixture[str]) -> Call:
    """quantkit("plan", ...): exit code, stdout, stderr."""

    def call(*arguments: str) -> tuple[int, str, str]:
        code = run(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def llama(tmp_path: Path, known_models: dict[str, Any]) -> str:
    """The config.json of Llama-3-8B."""
    path = tmp_path / "config.json"
    config = known_models["Llama-3-8B"]["config"] | {"max_position_embeddings": 131072}
    path.write_text(json.dumps(config))
    return str(path)


def test_a_gpu_that_no_build_runs_on_is_refused_with_a_remedy(quantkit: Call, llama: str) -> None:
    for engine in ("vllm", "sglang"):
        code, out, error = quantkit("plan", llama, "--gpu", "m3 ultra", "--engine", engine)
        assert code == 4
        assert "does not run on Apple GPUs" in error
        assert out.count("refused") == 1 + len(PLANNED_RECIPES)
        hint = error.strip().rpartition("; try: ")[2].split()
        assert quantkit("plan", llama, "--gpu", "m3 ultra", *hint)[0] == 0


LLAMA_7B = {"num_key_value_heads": 32, "intermediate_size": 11008, "vocab_size": 32000}


def change(path: str, changes: dict[str, Any]) -> None:
    config = json.loads(Path(path).read_text())
    Path(path).write_text(json.dumps(config | changes))


@pytest.mark.parametrize(
    ("changes", "options", "reason"),
    [
        (LLAMA_7B, "--gpu h100 --tp 4 --bits 4 --set scheme.group_size=128", "group size 128"),
        (LLAMA_7B, "--gpu h100 --tp 4 --recipe gptq --set scheme.group_size=128", "group size 128"),
        (
            LLAMA_7B,
            "--gpu h100 --tp 4 --engine sglang --bits 4 --set scheme.group_size=32",
            "Marlin's tile",
        ),
        (LLAMA_7B, "--gpu h100 --tp 3", "32 query heads"),
        ({}, "--gpu h100 --tp 2 --recipe nf4 --engine sglang", "packed bitsandbytes"),
        ({}, "--gpu h100 --tp 2 --engine transformers", "places whole layers"),
        ({}, "--gpu b200 --recipe smoothquant", "Blackwell"),
        ({}, "--gpu 4090 --recipe nf4-double", "does not load format `bitsandbytes`"),
        ({}, "--gpu t4 --engine sglang --bits 4", "Marlin kernels require"),
        ({}, "--gpu 4090 --set ep=8", "no experts"),
        ({}, "--gpu 4090 --context 1M", "longer than the model"),
        ({}, "--gpu v100 --engine transformers", "names several GPUs"),
        ({}, "--gpu 4090 --train full --zero 0 --offload cpu", "needs ZeRO stage"),
    ],
)
def test_what_a_refusal_proposes_is_accepted(
    quantkit: Call, llama: str, changes: dict[str, Any], options: str, reason: str
) -> None:
    change(llama, changes)
    code, _, error = quantkit("plan", llama, *options.split())
    assert code in (2, 4)
    assert reason in error
    hint = shlex.split(error.rpartition("try: ")[2].strip().partition(", ")[0])
    assert hint[0].startswith("--")
    code, _, error = quantkit("plan", llama, *options.split(), *hint)
    assert code == 0, error


def test_a_build_of_no_legal_group_proposes_one_that_is(quantkit: Call, llama: str) -> None:
    """Llama-2-7B on 4 ranks: 11008 / 4 = 21.5 groups of 128, 43 of 64."""
    change(llama, LLAMA_7B)
    _, out, _ = quantkit("plan", llama, "--gpu", "4090", "--tp", "4")
    (line,) = [line for line in out.splitlines() if line.startswith("W4 g128 sym (gptq): ")]
    hint = line.rpartition("; try: ")[2]
    assert hint == "--recipe gptq --set scheme.group_size=64"
    code, out, _ = quantkit("plan", llama, "--gpu", "4090", "--tp", "4", *hint.split())
    assert (code, "W4 g64 sym (gptq) fits" in out, "refused" in out) == (0, True, False)


def test_a_tower_is_counted_or_said_not_to_be(quantkit: Call, llama: str) -> None:
    inner = json.loads(Path(llama).read_text())
    whole = {"model_type": "llava", "text_config": inner, "torch_dtype": "bfloat16"}
    whole["vision_config"] = {"model_type": "clip_vision_model"}
    for model_type, noted in (("llava", False), ("foobar", True)):
        change(llama, whole | {"model_type": model_type})
        _, out, _ = quantkit("plan", llama, "--gpu", "4090")
        assert ("not counted: vision_config" in out) == noted
        document = json.loads(quantkit("plan", llama, "--json")[1])
        assert (len(document["notes"]) == 1) == noted
        assert ("tower" in document["builds"][0]["parts"]) != noted


def test_what_is_not_known_is_planned_with_a_word_or_refused(quantkit: Call, llama: str) -> None:
    code, out, _ = quantkit("plan", llama, "--gpu", "4090")
    assert (code, "takes it for a Llama" in out) == (0, False)
    change(llama, {"model_type": "foobar"})
    code, _, error = quantkit("plan", llama, "--gpu", "4090")
    assert (code, "plan cannot build model_type 'foobar'" in error) == (4, True)
    change(llama, {"model_type": "bert"})
    code, _, error = quantkit("plan", llama)
    assert (code, "try: a decoder" in error) == (4, True)
    change(llama, {"model_type": "llama", "hidden_size": None})
    config = json.loads(Path(llama).read_text())
    Path(llama).write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    code, _, error = quantkit("plan", llama)
    assert (code, "hidden_size is missing" in error) == (2, True)


def test_a_build_that_was_asked_for_and_is_refused_ends_in_4(
    quantkit: Call, llama: str, known_models: dict[str, Any]
) -> None:
    wrong = ("--bits", "4", "--set", "scheme.group_size=96")
    code, out, error = quantkit("plan", llama, *wrong, "--fail-over", "1MB")
    assert (code, "group size 96" in out, "group size 96" in error) == (4, True, True)
    assert quantkit("plan", llama, "--gpu", "4090", "--recipe", "nf4-double")[0] == 4
    Path(llama).write_text(json.dumps(known_models["Mixtral-8x7B"]["config"]))
    code, out, _ = quantkit("plan", llama, "--gpu", "h100", "--bits", "4")
    assert (code, "next: quantkit quantize" in out) == (0, True)
    Path(llama).write_text(
        json.dumps(known_models["DeepSeek-V3"]["config"] | {"model_type": "kimi_k2"})
    )
    code, out, _ = quantkit("plan", llama, "--gpu", "h200", "--bits", "4", "--tp", "8")
    assert (code, "next: " in out) == (4, False)
    assert "transformers has no class for it" in out
