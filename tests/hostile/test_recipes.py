"""Recipes and settings that nobody means."""

from collections.abc import Callable, Sequence

import pytest

from tests.hostile.scene import QUANTIZE, Case, Scene, parameters

HEAD = "method: rtn\nformat: gptq\n"


def recipe(text: str | bytes, name: str = "own.yaml") -> Callable[[Scene], Sequence[str]]:
    def spoil(scene: Scene) -> Sequence[str]:
        scene.beside(name, text)
        return ("quantize", "model", "-o", "out", "--recipe", f"./{name}", *QUANTIZE[6:])

    return spoil


def setting(*texts: str) -> Callable[[Scene], Sequence[str]]:
    settings = [word for text in texts for word in ("--set", text)]
    return lambda _: (*QUANTIZE, *settings)


def overrides(*patterns: str) -> str:
    return HEAD + "overrides:\n" + "".join(f"- {{match: '{p}', skip: true}}\n" for p in patterns)


def linked(target: str) -> Callable[[Scene], Sequence[str]]:
    def spoil(scene: Scene) -> Sequence[str]:
        (scene.home / "own.yaml").symlink_to(target)
        return ("quantize", "model", "-o", "out", "--recipe", "./own.yaml")

    return spoil


def piped(scene: Scene) -> Sequence[str]:
    import os

    os.mkfifo(scene.home / "own.yaml")
    return ("quantize", "model", "-o", "out", "--recipe", "./own.yaml")


def case(
    spoil: Callable[[Scene], Sequence[str]], *says: str, codes: tuple[int, ...] = (2,)
) -> Case:
    return Case(spoil, (), codes, says)


SLOW = r"re:(?:.|..|...)+(?<=!)$"
CASES = {
    "empty": case(recipe(""), "own.yaml"),
    "list": case(recipe("[1, 2]"), "own.yaml"),
    "binary": case(recipe(b"\x00\xff\xfe"), "own.yaml"),
    "control": case(recipe(HEAD + "name: \x07"), "own.yaml"),
    "anchor": case(recipe("a: &a [1]\nb: *a\n"), "own.yaml"),
    "laughs": case(recipe("a: &a [x,x]\nb: &b [*a,*a]\nc: &c [*b,*b]\n"), "own.yaml"),
    "tag": case(recipe("a: !!python/object/apply:os.system ['touch run']\n"), "own.yaml"),
    "merge": case(recipe("a: {<<: {b: 1}}\n"), "own.yaml"),
    "twice": case(recipe(HEAD + "method: gptq\n"), "own.yaml"),
    "deep": case(recipe("a: " + "[" * 400_000), "own.yaml"),
    "deep-map": case(recipe("a: " + "{a: " * 200_000), "own.yaml"),
    "wide": case(recipe("a: [" + "1," * 400_000 + "]"), "own.yaml"),
    "2-mb": case(recipe("# " + "x" * 2_000_000), "own.yaml"),
    "long-key": case(recipe("x" * 900_000 + ": 1"), "own.yaml"),
    "long-value": case(recipe("method: " + "x" * 900_000), "own.yaml"),
    "long-lines": case(recipe(HEAD + "\n" * 900_000 + "a: 1"), "own.yaml"),
    "comments": case(recipe("#\n" * 400_000 + "a: 1"), "own.yaml"),
    "digits": case(recipe(HEAD + "scheme: {bits: " + "9" * 5000 + "}"), "own.yaml"),
    "infinite": case(recipe(HEAD + "options: {damp: .inf}"), "own.yaml"),
    "documents": case(recipe("a: 1\n---\n" * 10_000), "own.yaml"),
    "directive": case(recipe("%YAML 1.1\n---\na: 1"), "own.yaml"),
    "extends-itself": case(recipe(HEAD + "extends: ./own.yaml"), "own"),
    "extends-path": case(recipe(HEAD + "extends: /etc/passwd"), "passwd"),
    "slow-pattern": case(recipe(overrides(SLOW)), "override", codes=(2, 4)),
    "slow-patterns": case(recipe(overrides(*[SLOW] * 500)), "override", codes=(2, 4)),
    "many-patterns": case(
        recipe(overrides(*(f"re:x{i}.*y" for i in range(3300)))), "own", codes=(2, 4)
    ),
    "many-globs": case(recipe(overrides(*(f"*x{i}*y*" for i in range(3300)))), "own", codes=(2, 4)),
    "slow-glob": case(recipe(overrides("*a" * 90 + "!")), "a!", codes=(2, 4)),
    "long-pattern": case(recipe(overrides("re:" + "a" * 300)), "own.yaml"),
    "nested-pattern": case(recipe(overrides("re:" + "(" * 150)), "own.yaml"),
    "counted-pattern": case(
        recipe(overrides("re:((((a{1,9999}){1,9999}){1,9999}){1,9999})")), "override", codes=(2, 4)
    ),
    "device": case(linked("/dev/zero"), "own.yaml"),
    "folder": case(linked("/etc"), "own.yaml"),
    "loop": case(linked("own.yaml"), "own.yaml"),
    "fifo": case(piped, "own.yaml"),
    "set-deep": case(setting("a" + ".a" * 100_000 + "=1"), "--set"),
    "set-deep-value": case(setting("options.a=" + "[" * 50_000), "--set"),
    "set-long": case(setting("x" * 100_000 + "=1"), "--set"),
    "set-over-value": case(setting("method.a=1"), "--set"),
    "set-inside-list": case(setting("overrides.0.match=1"), "--set"),
    "set-anchor": case(setting("options.a=&a [*a]"), "--set"),
    "set-many": case(setting(*(f"options.a{i}=1" for i in range(2000))), "options"),
    "set-line": case(setting("method=rtn\nformat: awq"), "--set"),
}


@pytest.mark.parametrize("name", parameters(CASES))
def test_recipes(name: str, refused: Callable[[Case], None]) -> None:
    refused(CASES[name])
