"""Outputs that would overwrite, results and manifests from anybody, devices that compute nothing.

No case names a device of the machine as its output: where tests run as root, a fault would replace
it.
"""

import json
import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.hostile.scene import EVAL, GENERATE, QUANTIZE, VERIFY, Case, Scene, parameters

RECIPE = {"name": "x", "method": "rtn", "format": "gptq"}


def saved(target: str) -> Callable[[Scene], Sequence[str]]:
    return lambda _: (*EVAL, "-o", target)


def linked(target: str) -> Callable[[Scene], Sequence[str]]:
    """The result goes to a link."""

    def spoil(scene: Scene) -> Sequence[str]:
        scene.beside("precious", "precious")
        (scene.home / "eval.json").symlink_to(target)
        return (*EVAL, "-o", "eval.json")

    return spoil


def waiting(scene: Scene) -> Sequence[str]:
    scene.beside("precious", "precious")
    (scene.home / "eval.json.tmp").symlink_to("precious")
    (scene.home / "eval.json").mkdir()
    return (*EVAL, "-o", "eval.json")


def piped(option: str) -> Callable[[Scene], Sequence[str]]:
    def spoil(scene: Scene) -> Sequence[str]:
        os.mkfifo(scene.home / "pipe.json")
        return (*EVAL, option, "pipe.json")

    return spoil


def manifest(content: Any, *argv: str) -> Callable[[Scene], Sequence[str]]:
    def spoil(scene: Scene) -> Sequence[str]:
        text = content if isinstance(content, str | bytes) else json.dumps(content)
        scene.write("quantkit.json", text)
        return argv or EVAL

    return spoil


def sums(data: str | bytes) -> Callable[[Scene], None]:
    return lambda scene: scene.write("SHA256SUMS", data)


def baseline(data: str | bytes) -> Callable[[Scene], Sequence[str]]:
    def spoil(scene: Scene) -> Sequence[str]:
        scene.beside("old.json", data)
        return (*EVAL, "--baseline", "old.json")

    return spoil


def special(name: str, target: str) -> Callable[[Scene], None]:
    def spoil(scene: Scene) -> None:
        if target == "fifo":
            os.mkfifo(scene.model / name)
        else:
            (scene.model / name).symlink_to(target)

    return spoil


def journal(content: Any) -> Callable[[Scene], Sequence[str]]:
    def spoil(scene: Scene) -> Sequence[str]:
        (scene.home / "out.journal").mkdir()
        (scene.home / "out.journal" / "journal.jsonl").write_text(content, encoding="utf-8")
        return ("resume", "out")

    return spoil


def stored(scene: Scene) -> Sequence[str]:
    """A saved reference that says nothing."""
    (scene.home / "ref").mkdir()
    (scene.home / "ref" / "reference.json").write_text("[]", encoding="utf-8")
    return (*EVAL, "--reference", "ref")


def own(name: str) -> Callable[[Scene], Sequence[str]]:
    return lambda _: (*EVAL, "-o", f"model/{name}")


def swept(output: str) -> Callable[[Scene], Sequence[str]]:
    return lambda _: ("sweep", "model", "--recipes", "rtn", "-o", output, "--samples", "1")


def argv(*words: str) -> Callable[[Scene], Sequence[str]]:
    return lambda _: words


def case(spoil: Callable[[Scene], Any], *says: str, codes: tuple[int, ...] = (2,)) -> Case:
    return Case(spoil, EVAL, codes, says)


OUTPUTS = {
    "over-config": case(own("config.json"), "config.json"),
    "over-weights": case(own("model.safetensors"), "model.safetensors"),
    "over-tokenizer": case(own("tokenizer.json"), "tokenizer.json"),
    "through-link": case(linked("precious"), "eval.json"),
    "dangling-link": case(linked("nothing"), "eval.json"),
    "into-folder": case(saved("model"), "model"),
    "pipe": case(piped("-o"), "pipe.json"),
    "waiting-link": case(waiting, "eval.json", codes=(2, 5)),
    "reference-inside": case(argv(*EVAL, "--save-reference", "model"), "model"),
    "reference-within": case(
        argv(*EVAL, "--reference", "model", "--save-reference", "model/reference"), "model"
    ),
    "quantize-inside": case(argv(*QUANTIZE[:2], "-o", "model/out", *QUANTIZE[4:]), "model/out"),
    "quantize-over": case(argv(*QUANTIZE[:2], "-o", "model", *QUANTIZE[4:]), "model"),
    "sweep-inside": case(swept("model/runs"), "model/runs"),
    "sweep-over": case(swept("model"), "model"),
    "report-over": case(argv("report", "model", "-o", "model/config.json"), "model"),
}
RESULTS = {
    "baseline-device": case(argv(*EVAL, "--baseline", "/dev/zero"), "/dev/zero"),
    "baseline-random": case(argv(*EVAL, "--baseline", "/dev/urandom"), "/dev/urandom"),
    "baseline-fifo": case(piped("--baseline"), "pipe.json"),
    "baseline-folder": case(argv(*EVAL, "--baseline", "model"), "model"),
    "baseline-deep": case(baseline("[" * 100_000), "old.json"),
    "baseline-digits": case(baseline('{"a":' + "9" * 5000 + "}"), "old.json"),
    "baseline-other": case(baseline('{"a": 1}'), "old.json"),
    "baseline-long": case(baseline('{"kl": "' + "x" * 5_000_000 + '"}'), "old.json"),
    "baseline-keys": case(
        baseline(json.dumps({"x" * 100_000 + str(i): 1 for i in range(50)})), "old.json"
    ),
    "baseline-big": case(baseline(b"[" + b" " * 200_000_000), "old.json"),
    "reference": case(stored, "ref", codes=(2, 6)),
    "report-device": case(argv("report", "/dev/zero", "-o", "r.html"), "/dev/zero"),
    "report-nothing": case(argv("report", "model", "-o", "r.html"), "model"),
}
MANIFESTS = {
    "text": case(manifest("{"), codes=(0,)),
    "list": case(manifest([1]), codes=(0,)),
    "deep": case(manifest("[" * 100_000), codes=(0,)),
    "version": case(manifest({"schema_version": "x" * 10**6}), "quantkit.json", codes=(0, 2)),
    "engines": case(manifest({"engines": 7}), "quantkit.json", codes=(0, 2)),
    "engines-list": case(manifest({"engines": [7]}), "quantkit.json", codes=(0, 2)),
    "engines-map": case(manifest({"engines": {"vllm": [[]]}}), "quantkit.json", codes=(0, 2)),
    "modules": case(manifest({"modules": {"a": 1}}), "quantkit.json", codes=(0, 2)),
    "modules-items": case(
        manifest({"modules": [7, None, {"name": []}]}), "quantkit.json", codes=(0, 2)
    ),
    "modules-values": case(
        manifest({"modules": [{"name": "a.0.b", "loss": "x", "scheme": 7, "notes": 9}]}),
        "quantkit.json",
        codes=(0, 2),
    ),
    "experts": case(
        manifest({"modules": [{}], "expert_tokens": [7]}), "quantkit.json", codes=(0, 2)
    ),
    "experts-text": case(
        manifest({"expert_tokens": {"a": "x"}, "modules": []}), "quantkit.json", codes=(0, 2)
    ),
    "gates": case(manifest({"recipe": {**RECIPE, "gates": [7]}}), "quantkit.json", codes=(0, 2)),
    "gates-text": case(
        manifest({"recipe": {**RECIPE, "gates": "kl<1"}}), "quantkit.json", codes=(0, 2)
    ),
    "gates-key": case(
        manifest({"gates": [{"gate": 1}], "recipe": 7}), "quantkit.json", codes=(0, 2)
    ),
    "recipe": case(manifest({"recipe": [1]}), "quantkit.json", codes=(0, 2)),
    "recipe-calibration": case(
        manifest({"recipe": {**RECIPE, "calibration": 7}}), "quantkit.json", codes=(0, 2)
    ),
    "calibration": case(
        manifest({"calibration": [1], "recipe": RECIPE}), "quantkit.json", codes=(0, 2)
    ),
    "calibration-text": case(
        manifest(
            {
                "calibration": {"source": "/dev/zero", "samples": 10**12, "sequence_length": -1},
                "recipe": {**RECIPE, "calibration": {"text": "/dev/zero", "samples": 10**12}},
            }
        ),
        "quantkit.json",
        codes=(0, 2),
    ),
    "calibration-file": case(
        manifest(
            {
                "calibration": {
                    "source": "/etc/passwd",
                    "samples": 1,
                    "sequence_length": 32,
                    "sha256": "x",
                },
                "recipe": {
                    **RECIPE,
                    "calibration": {"text": "/etc/passwd", "samples": 1, "sequence_length": 32},
                },
            }
        ),
        "quantkit.json",
        codes=(0, 2),
    ),
    "as-recipe": case(
        manifest({"recipe": {"extends": "./x.yaml"}}, *QUANTIZE[:4], "--recipe", "model"), "x.yaml"
    ),
    "as-recipe-deep": case(
        manifest("[" * 100_000, *QUANTIZE[:4], "--recipe", "model"), "quantkit.json"
    ),
    "verify-list": case(manifest([1], *VERIFY), codes=(6,)),
    "verify-tensors": case(
        manifest({"tensors": [1], "files": 7, "modules": "x"}, *VERIFY), codes=(0, 2, 4, 6)
    ),
    "report-modules": case(manifest({"modules": [7]}, "report", "model", "-o", "r.html"), "model"),
    "fifo": case(special("quantkit.json", "fifo"), "quantkit.json", codes=(0, 2)),
    "device": case(special("quantkit.json", "/dev/zero"), "quantkit.json", codes=(0, 2)),
}
SUMS = {
    "line": case(sums("x" * 10_000), "SHA256SUMS"),
    "outside": case(sums("0" * 64 + "  /etc/passwd\n"), "SHA256SUMS"),
    "above": case(sums("0" * 64 + "  ../../etc/passwd\n"), "SHA256SUMS"),
    "wrong": case(sums("0" * 64 + "  config.json\n"), "config.json", codes=(6,)),
    "fifo": case(special("SHA256SUMS", "fifo"), "SHA256SUMS", codes=(0, 2)),
    "device": case(special("SHA256SUMS", "/dev/zero"), "SHA256SUMS", codes=(0, 2)),
    "many": case(sums(("0" * 64 + "  gone\n") * 200_000), "SHA256SUMS", codes=(0, 2)),
}
JOURNALS = {
    "text": case(journal("{"), "out", codes=(2, 4, 6)),
    "list": case(journal("[1]\n"), "out", codes=(2, 4, 6)),
    "other": case(journal('{"command": {"verb": "os.system"}}\n'), "out", codes=(2, 4, 6)),
    "deep": case(journal("[" * 100_000), "out", codes=(2, 4, 6)),
}
DEVICES = {
    f"{device}-{verb[0]}": case(argv(*verb, "--device", device), "device", codes=(2,))
    for device in ("meta", "cuda:99", "x" * 1000, "cpu:7x", "mkldnn", "")
    for verb in ((EVAL, GENERATE, QUANTIZE) if device == "meta" else (EVAL,))
}
WORDS = {
    "nul-model": case(argv("eval", "mo\0del"), "model", codes=(2, 5)),
    "long-model": case(argv("eval", "x" * 100_000), "model", codes=(2, 5, 7)),
    "escape-model": case(argv("eval", "\x1b[2J"), "folder", codes=(2, 7)),
    "gate": case(argv(*EVAL, "--gate", "x" * 100_000), "figure"),
    "length": case(argv("eval", "model", "--sequence-length", str(10**18)), codes=(0, 2)),
    "tokens": case(argv("generate", "model", "a" * 100_000), "prompt"),
    "protocol": case(argv(*EVAL, "--protocol", "x" * 100_000), "protocol"),
}
CASES = {
    f"{kind}-{name}": each
    for kind, table in (
        ("output", OUTPUTS), ("result", RESULTS), ("manifest", MANIFESTS), ("sums", SUMS),
        ("journal", JOURNALS), ("device", DEVICES), ("words", WORDS),
    )
    for name, each in table.items()
}  # fmt: skip


@pytest.mark.parametrize("name", parameters(CASES))
def test_files(name: str, refused: Callable[[Case], None]) -> None:
    refused(CASES[name])
