"""Remedies are followed to the letter: what they name is there, and helps."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from quantkit.cli.hints import options_of, spoken
from quantkit.core import registry
from tests.cli.conftest import LLAMA_8B

Call = Callable[..., tuple[int, str, str]]
STEPS = 4
PLAN = """
--bits 9
--bits 3 --gpu 4090
--bits 3 --gpu 4090 --engine sglang
--bits 8 --recipe awq
--bits 4 --recipe smoothquant
--recipe nf4 --gpu 4090
--recipe nf4-double --gpu 4090 --engine sglang
--recipe gpt
--recipe nf4 --set format=gptq
--recipe nf4 --set scheme.symmetric=false
--recipe nf4 --set scheme.activation=int8-token
--recipe gptq --set format=bitsandbytes
--recipe smoothquant --gpu b200
--recipe smoothquant --set scheme.group_size=64
--recipe smoothquant --set options.alpha=2
--recipe smoothquant --set engines=[gptqmodel]
--recipe gptq --set scheme.double_quant=true
--set method=nf4
--set method=gtpq
--set format=gguf
--set bits=4
--set bit=4
--set seed=4
--set zero=1
--set scheme.seed=4
--set context=32k --gpu 4090
--set tp=2 --gpu 4090
--gpu mi300x --engine sglang --recipe nf4-double --set chunk=4096 --set reserve=0
--set damp=0.1
--set options.damp=much
--set options.damping=0.1
--set scheme.bits=9
--set scheme.bit=8
--set calibration.sample=16
--set scheme.group_size=96
--set scheme.symmetric=false --gpu 4090
--set scheme.symmetric=false --set format=compressed-tensors --gpu 4090 --engine transformers
--set utilisation=0.8 --gpu 4090
--set utilization=0 --gpu 4090
--set slack=7 --gpu 4090
--set chunk=0 --gpu 4090
--set graphs=12 --gpu 4090
--set chunk=512 --gpu 4090 --engine sglang
--set chunk=512 --gpu 4090 --engine transformers
--set pp=two --gpu 4090
--set pp=64 --gpu 4090
--set ep=8 --gpu 4090
--tp 2 --gpu 4090 --engine transformers
--tp 3 --gpu 4090
--tp 2
--context 8k
--gpu 4091
--gpu 24
--gpu 2x4090
--fail-over gpu
--gpu 4090 --fail-over gpu --context 32k --batch 8
--gpu nothing-like-it
--gpu 4090 --engine vlm
--gpu 4090 --kv 4
--gpu 4090 --context much
--gpu 4090 --context 1M
--gpu 4090 --context 99999999
--gpu 4090 --batch 99999999
--gpu 4090 --explain --against MODEL
--gpu 10GB --context 128k
--gpu 12GB --engine sglang --bits 8
--fail-over 24
--fail-over much
--gpus 4
--train ful
--train full --set rank=8
--train full --zero 7
--train full --zero 0 --offload cpu
--train full --zero 2 --offload nvme
--train full --tp 2 --kv 8
--train full --bits 4
--train full --engine vllm
--train full --set chunk=512
--train lora --set optimizer=adam
--train lora --set rank=none
--train lora --set rank=99999999999
--train full --set gradient_bytes=8
--gpu 0GB
--gpu 24GB@0GB/s
--gpu local
--train full --gpu 4090 --gpus 8 --context 4k
"""
FIT = """
--size 5
--size much
--size 1GB --engine vlm
--size 1GB --tp 2
--size 1GB --gpu 4090
--size 1GB
--size 1MB --bits 9
--size 1MB --group-size some
--size 1MB --group-size 96
--size 1MB --engine gptqmodel --bits 3
--gpu 4091
--gpu 4090 --engine transformers --tp 2
--gpu 4090 --tp 3
--gpu 1GB
--gpu 4090 --engine gptqmodel
"""


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


def hints(told: str) -> list[str]:
    """Every alternative of every remedy."""
    found = [line.rpartition("try: ")[2] for line in told.splitlines() if "try: " in line]
    return [each for hint in dict.fromkeys(found) for each in re.split(r",? or (?=--)", hint)]


def followed(arguments: list[str], hint: str, told: str) -> list[str]:
    """The command line with the options of a remedy in the place of its own of that name.

    A setting that is `told` to be wrong goes, if the remedy states another.
    """
    wrong = re.search(
        r"(?:--set |setting `|(option) `)([\w.]+)|`([\w.]+)` is [\w, ]*not a setting", told
    )
    name = f"options.{wrong[2]}" if wrong and wrong[1] else wrong and (wrong[2] or wrong[3])
    names = {name} if "--set" in hint or f"--{name} " in hint else set()
    stated: list[list[str]] = []
    for word in [*arguments, *shlex.split(hint.removeprefix("the same "))]:
        if word.startswith("--") or not stated:
            stated.append([word])
        else:
            stated[-1].append(word)
    split = next((i for i, words in enumerate(stated) if words[-1] == "without"), None)
    if split is not None:
        stated[split].pop()
        gone = {words[0] for words in stated[split + 1 :]}
        return [word for words in stated[: split + 1] if words[0] not in gone for word in words]
    stated = [
        w for w in stated if w[-1].partition("=")[0] not in names or w[-1] in shlex.split(hint)
    ]
    by_key: dict[str, list[str]] = {}
    for words in stated:
        key = " ".join(words).partition("=")[0] if words[0] == "--set" else words[0]
        by_key.pop(key, None)
        by_key[key] = words
    return [word for words in by_key.values() for word in words]


def check(call: Call, verb: str, model: str, arguments: list[str]) -> None:
    """Follow remedies until nothing is left to remedy."""
    known = options_of(registry.load("cli.commands", verb, "COMMAND"))
    seen = []
    for _ in range(STEPS):
        code, out, err = call(verb, model, *arguments)
        assert "Traceback" not in err
        assert code in (0, 2, 3, 4), err
        if code == 3 or (code == 0 and "no build fits" not in out and "does not fit" not in out):
            return
        begins = re.compile("error|refused|no build|does not")
        told = [line for line in (out + err).splitlines() if begins.match(line)]
        assert told not in seen, f"followed to no avail: {arguments}\n{told}"
        seen.append(told)
        tried = "\n".join(line for line in out.splitlines() if line.startswith("try: "))
        found = hints(err if code else tried)
        assert found, err
        for hint in found:
            assert set(re.findall(r"(?<!\S)--[a-z-]+", hint)) <= known, hint
        typed = [hint for hint in found if hint.startswith(("--", "the same without --"))]
        if not typed:
            assert not any("--" in hint for hint in found), found
            return
        arguments = followed(arguments, typed[0], told[0])
    raise AssertionError(f"still not right after {STEPS} remedies: {arguments}")


@pytest.mark.parametrize("options", lines(PLAN))
def test_remedies_of_plan_are_literal(quantkit: Call, tmp_path: Path, options: str) -> None:
    model = tmp_path / "config.json"
    model.write_text(json.dumps(LLAMA_8B))
    check(quantkit, "plan", str(model), shlex.split(options.replace("MODEL", str(model))))


@pytest.mark.long
@pytest.mark.parametrize("options", lines(FIT))
def test_remedies_of_fit_are_literal(
    quantkit: Call, tmp_path: Path, options: str, tiny_checkpoint: Callable[..., Path]
) -> None:
    quick = ["--samples", "4", "-o", str(tmp_path / "out")]
    check(quantkit, "fit", str(tiny_checkpoint()), [*shlex.split(options), *quick])


def test_options_that_a_verb_lacks_become_settings() -> None:
    text = "no; try: --method nf4 --group-size 64 --bits 4 --symmetric, or --samples 8"
    assert spoken(text, {"--bits", "--recipe"}) == text
    assert spoken(text, {"--set", "--bits", "--recipe"}) == (
        "no; try: --recipe nf4 --set scheme.group_size=64 --bits 4 "
        "--set scheme.symmetric=true, or --set calibration.samples=8"
    )
    quantize = options_of(registry.load("cli.commands", "quantize", "COMMAND"))
    assert spoken(text, quantize) == text


def test_a_recipe_is_named_as_the_verb_takes_it() -> None:
    assert spoken("--recipe gptq", {"--recipes", "--set"}) == "--recipes gptq"
    assert spoken("--recipe gptq", set()) == "quantkit recipes show gptq"
    assert spoken("--recipe gptq", {"--recipe", "--set"}) == "--recipe gptq"


@pytest.mark.parametrize("verb", ["quantize nothere -o out", "eval nothere"])
def test_a_model_that_is_not_there_is_refused_before_torch_is_loaded(
    verb: str, tmp_path: Path
) -> None:
    code = (
        "import sys; from quantkit.cli.main import run\n"
        f"code = run({verb.replace('nothere', './nothere').split()!r})\n"
        "sys.exit(code if 'torch' not in sys.modules else 99)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "neither a folder nor a hub id" in done.stderr
