"""Remedies in the words of the verb that prints them."""

import inspect
import re
from collections.abc import Callable, Collection
from typing import Any

from typer.models import OptionInfo

SWITCHES = {"symmetric": "true", "asymmetric": "false"}


def options_of(function: Callable[..., Any]) -> frozenset[str]:
    """The long options of a command, as its signature states them."""
    found: set[str] = set()
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        for info in getattr(parameter.annotation, "__metadata__", ()):
            if isinstance(info, OptionInfo):
                stated = [info.default, *(info.param_decls or ())]
                words = [
                    word for text in stated if isinstance(text, str) for word in text.split("/")
                ]
                long = {word for word in words if word.startswith("--")}
                found |= long or {f"--{name.replace('_', '-')}"}
    return frozenset(found)


def spoken(text: str, options: Collection[str]) -> str:
    """`text` in which options that a verb lacks are its `--set`, or are not named if it has none.

    Formats, methods and engines name the options of `quantize`.
    """
    if "--recipe" not in options:  # `sweep` takes several, `recipes show` a name
        plural = "--recipes " if "--recipes" in options else "quantkit recipes show "
        text = re.sub(r"(?<!\S)--recipe (?=[\w.-]+$)", plural, text)
    if "--set" not in options:
        return re.sub(r" --set \S+", "", text)
    from quantkit.recipes.loader import FLAG_PATHS

    def key_and_value(match: re.Match[str]) -> str:
        option, value = match["option"], match["value"]
        if f"--{option}" in options:
            return match[0]
        if option in SWITCHES:
            return f"--set scheme.symmetric={SWITCHES[option]}{' ' + value if value else ''}"
        path = FLAG_PATHS.get(option.replace("-", "_"))
        if path is None or not value:
            return match[0]
        if option == "method":
            return f"--recipe {value}"  # each method has a recipe of its name
        return f"--set {'.'.join(map(str, path))}={value}"

    return re.sub(r"--(?P<option>[a-z][a-z-]+)(?: (?P<value>(?!-)[\w./-]+))?", key_and_value, text)
