"""Texts, tokenizers and chat templates that take everything a machine has."""

import json
import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.hostile.scene import EVAL, GENERATE, QUANTIZE, Case, Scene, parameters

CHAT = {"messages": [{"role": "user", "content": "word " * 400}]}
TEMPLATE_QUANTIZE = (*QUANTIZE, "--calibration", "chats.jsonl", "--method", "gptq")


def text(
    data: bytes | Callable[[], bytes], name: str = "text.txt", verb: str = "eval"
) -> Callable[[Scene], Sequence[str]]:
    def spoil(scene: Scene) -> Sequence[str]:
        scene.beside(name, data if isinstance(data, bytes) else data())
        return scored(name, verb)

    return spoil


def scored(name: str, verb: str) -> Sequence[str]:
    return (*EVAL, "--text", name) if verb == "eval" else (*QUANTIZE, "--calibration", name)


def special(kind: str, verb: str = "eval") -> Callable[[Scene], Sequence[str]]:
    def spoil(scene: Scene) -> Sequence[str]:
        path = scene.home / "text.txt"
        if kind == "fifo":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        else:
            path.symlink_to(kind)
        return scored("text.txt", verb)

    return spoil


def tree(scene: Scene) -> Sequence[str]:
    """A folder with a link out of it."""
    (scene.home / "texts").mkdir()
    (scene.home / "texts" / "a.txt").symlink_to("/etc/passwd")
    return scored("texts", "eval")


def pipes(scene: Scene) -> Sequence[str]:
    (scene.home / "texts").mkdir()
    os.mkfifo(scene.home / "texts" / "a.txt")
    return scored("texts", "eval")


def tokenizer(change: Callable[[dict[str, Any]], Any]) -> Callable[[Scene], None]:
    def spoil(scene: Scene) -> None:
        path = scene.model / "tokenizer.json"
        found = json.loads(path.read_text(encoding="utf-8"))
        change(found)
        path.write_text(json.dumps(found), encoding="utf-8")

    return spoil


def doubling(times: int) -> Callable[[Scene], None]:
    plain = {"type": "Replace", "pattern": {"String": "e"}, "content": "ee"}
    return tokenizer(
        lambda t: t.update(normalizer={"type": "Sequence", "normalizers": [plain] * times})
    )


def added(count: int) -> Callable[[Scene], None]:
    """Tokens beyond the model's embeddings."""
    more = [
        {
            "id": 256 + i,
            "content": f"<{i}>",
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for i in range(count)
    ]
    return tokenizer(lambda t: t["added_tokens"].extend(more))


def settings(**changes: Any) -> Callable[[Scene], None]:
    return lambda scene: scene.json("tokenizer_config.json", **changes)


def file(name: str, data: str | bytes) -> Callable[[Scene], None]:
    return lambda scene: scene.write(name, data)


def coded(scene: Scene) -> None:
    scene.json(
        "tokenizer_config.json",
        tokenizer_class="Own",
        auto_map={"AutoTokenizer": ["code.Own", None]},
    )
    (scene.model / "tokenizer.json").unlink()
    scene.write("code.py", "open('run', 'w')\n")
    scene.write("vocab.json", "{}")


def piped(scene: Scene) -> None:
    (scene.model / "tokenizer.json").unlink()
    os.mkfifo(scene.model / "tokenizer.json")


def zero(scene: Scene) -> None:
    (scene.model / "tokenizer.json").unlink()
    (scene.model / "tokenizer.json").symlink_to("/dev/zero")


def template(source: str) -> Callable[[Scene], Sequence[str]]:
    def spoil(scene: Scene) -> Sequence[str]:
        scene.write("chat_template.jinja", source)
        return (*GENERATE, "--chat")

    return spoil


def taught(source: str) -> Callable[[Scene], Sequence[str]]:
    """The template renders calibration text; where it fails, conversations are plain text."""

    def spoil(scene: Scene) -> Sequence[str]:
        scene.write("chat_template.jinja", source)
        scene.beside("chats.jsonl", (json.dumps(CHAT) + "\n") * 50)
        return (*QUANTIZE[:4], "--method", "gptq", *QUANTIZE[6:], "--calibration", "chats.jsonl")

    return spoil


def case(spoil: Callable[[Scene], Any], *says: str, codes: tuple[int, ...] = (2,)) -> Case:
    return Case(spoil, EVAL, codes, says)


LOOP = "{% for i in range(99999) %}" * 3 + "{% endfor %}" * 3
LINE = b"word " * 1_800_000
TEXTS = {
    f"{name}-{verb}": case(text(data, suffix, verb), *says, codes=codes)
    for verb in ("eval", "quantize")
    for name, suffix, data, codes, says in (
        ("9-mb-line", "text.txt", lambda: LINE, (2,), ("text.txt",)),
        ("2-mb-word", "text.txt", lambda: b"x" * 2_000_000, (0, 2), ()),
        ("50-mb-newlines", "text.txt", lambda: b"\n" * 50_000_000, (0, 2), ()),
        ("nul", "text.txt", lambda: b"\0" * 5_000_000, (2,), ("text.txt",)),
        ("11-mb-line", "text.txt", lambda: b"x" * 11_000_000, (2,), ("text.txt",)),
        ("empty", "text.txt", b"", (2,), ("text.txt",)),
        ("latin", "text.txt", b"caf\xe9 " * 1000, (2,), ("text.txt", "UTF-8")),
        (
            "empty-records",
            "text.jsonl",
            lambda: b'{"text":""}\n' * 2_000_000,
            (2,),
            ("text.jsonl",),
        ),
        ("records", "text.jsonl", b"[1]\n", (2,), ("text.jsonl",)),
        ("surrogate", "text.jsonl", b'{"text":"\\ud800"}\n', (2,), ("text.jsonl",)),
        ("deep", "text.jsonl", b'{"text":' + b"[" * 100_000, (2,), ("text.jsonl",)),
        ("roles", "text.jsonl", b'{"messages":[{"role":7}]}\n', (2,), ("text.jsonl",)),
        ("long-key", "text.jsonl", b'{"' + b"k" * 5_000_000 + b'":1}\n', (2,), ("text.jsonl",)),
        ("parquet", "text.parquet", b"PAR1" + b"\xff" * 5000 + b"PAR1", (2, 4), ("text.parquet",)),
        ("other", "text.bin", b"x", (2,), ("text.bin",)),
    )
    if verb == "eval" or name in ("9-mb-line", "50-mb-newlines", "nul", "empty-records", "latin")
}
FILES = {
    "device": case(special("/dev/zero"), "text.txt"),
    "fifo": case(special("fifo"), "text.txt"),
    "folder": case(special("folder"), "text.txt"),
    "device-calibration": case(special("/dev/zero", "quantize"), "text.txt"),
    "linked-out": case(tree, "a.txt"),
    "pipes": case(pipes, "texts"),
    "missing": case(lambda _: (*EVAL, "--text", "gone.txt"), "gone.txt"),
    "long-name": case(lambda _: (*EVAL, "--text", "x" * 100_000), codes=(2, 5)),
}
TOKENIZERS = {
    "doubling": case(doubling(40), "token", codes=(2, 4, 5)),
    "doubling-20": case(doubling(20), "token", codes=(2, 4, 5)),
    "added": case(added(1), "256", codes=(0, 2)),
    "not-json": case(file("tokenizer.json", "{"), "tokenizer"),
    "other-json": case(file("tokenizer.json", "[]"), "tokenizer"),
    "deep": case(file("tokenizer.json", '{"a":' * 100_000), "tokenizer"),
    "empty-vocabulary": case(tokenizer(lambda t: t["model"].update(vocab={})), "token"),
    "vocabulary-list": case(tokenizer(lambda t: t["model"].update(vocab=[1])), "tokenizer"),
    "ids": case(tokenizer(lambda t: t["model"]["vocab"].update(a=2**31)), "token", codes=(4,)),
    "huge-ids": case(tokenizer(lambda t: t["model"]["vocab"].update(a=2**63)), "token"),
    "slow-split": case(
        tokenizer(
            lambda t: t.update(
                pre_tokenizer={
                    "type": "Split",
                    "pattern": {"Regex": "(x+x+)+y"},
                    "behavior": "Isolated",
                    "invert": False,
                }
            )
        ),
        "token",
        codes=(0, 2),
    ),
    "config-list": case(file("tokenizer_config.json", "[1]"), "tokenizer"),
    "config-deep": case(file("tokenizer_config.json", '{"a":' * 100_000), "tokenizer"),
    "class": case(settings(tokenizer_class="os.system"), "tokenizer", codes=(0, 2)),
    "eos-list": case(settings(eos_token=[1, 2]), "tokenizer", codes=(0, 2)),
    "max-length": case(settings(model_max_length="x"), "token", codes=(0, 2)),
    "code": case(coded, "code", codes=(2, 4)),
    "fifo": case(piped, "tokenizer"),
    "device": case(zero, "tokenizer"),
    "big": case(file("tokenizer.json", b" " * 300_000_000), "tokenizer"),
}
TEMPLATES = {
    "loop": case(template(LOOP), "template"),
    "loop-text": case(
        template("{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}"),
        "template",
    ),
    "power": case(template("{{ 9 ** (9 ** 9) }}"), "template"),
    "product": case(template("{{ 'x' * 10 ** 12 }}"), "template"),
    "format": case(template("{{ '%999999999d' % 1 }}"), "template"),
    "center": case(template("{{ 'x'.center(10 ** 10) }}"), "template"),
    "recursive": case(template("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"), "template"),
    "escape": case(template("{{ ''.__class__.__mro__[1].__subclasses__() }}"), "template"),
    "import": case(template("{% import 'os' as os %}{{ os.system('touch run') }}"), "template"),
    "include": case(template("{% include '/etc/passwd' %}"), "template"),
    "globals": case(template("{{ raise_exception.__globals__ }}"), "prompt"),
    "cycler": case(
        template("{{ cycler.__init__.__globals__.os.system('touch run') }}"), "template"
    ),
    "syntax": case(template("{% if %}"), "template"),
    "long": case(template("{# " + "x" * 100_000 + " #}"), "template"),
    "nested": case(template("{% if 1 %}" * 5000 + "{% endif %}" * 5000), "template"),
    "brackets": case(template("{{ " + "(" * 20_000 + ")" * 20_000 + " }}"), "template"),
    "raises": case(template("{{ raise_exception('x' * 100000) }}"), "template"),
    "loop-calibration": case(taught(LOOP), codes=(0, 2)),
}
CASES = {
    **{f"text-{name}": each for name, each in (TEXTS | FILES).items()},
    **{f"tokenizer-{name}": each for name, each in TOKENIZERS.items()},
    **{f"template-{name}": each for name, each in TEMPLATES.items()},
}


@pytest.mark.parametrize("name", parameters(CASES))
def test_texts(name: str, refused: Callable[[Case], None]) -> None:
    refused(CASES[name])
