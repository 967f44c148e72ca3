"""Registries are folders: each module is an entry, its file name is the key."""

from difflib import get_close_matches
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from quantkit.core.errors import InputError, QuantkitError


def names(folder: str) -> tuple[str, ...]:
    """Sorted keys of the entries of `quantkit.<folder>`, found without importing them."""
    entries = iter_modules(import_module(f"quantkit.{folder}").__path__)
    stems = (entry.name for entry in entries if not entry.name.startswith("_"))
    return tuple(sorted(stem.replace("_", "-") for stem in stems))


def find(folder: str, name: str) -> str:
    """The key of entry `name`, which is not imported; `-` and `_` are the same in names.

    Raises:
        InputError: no such entry; the nearest name is proposed.
    """
    key = name.replace("_", "-")
    known = names(folder)
    if key not in known:
        kind = folder.removesuffix("s").split(".")[-1]
        raise InputError(
            f"unknown {kind} `{name}`",
            why=f"known: {', '.join(known)}",
            hint=f"--{kind} {nearest(key, known)}",
        )
    return key


def load(folder: str, name: str, attribute: str) -> Any:
    """The object `attribute` of entry `name`.

    Raises:
        InputError: as `find`.
        QuantkitError: its file is incomplete, or does not export it.
    """
    module = f"quantkit.{folder}.{find(folder, name).replace('-', '_')}"
    try:
        entry = import_module(module)
    except (TypeError, ValueError) as error:
        raise QuantkitError(
            f"{module.replace('.', '/')}.py is not a complete entry of its registry",
            why=f"{type(error).__name__}: {error}",
            hint="complete the file; CONTRIBUTING.md shows one",
        ) from error
    if not hasattr(entry, attribute):
        raise QuantkitError(
            f"{module.replace('.', '/')}.py exports no {attribute}",
            why=f"each file of quantkit.{folder} is an entry of its registry",
            hint=f"add {attribute} to the file; CONTRIBUTING.md shows one",
        )
    return getattr(entry, attribute)


def nearest(name: str, known: tuple[str, ...]) -> str:
    """The most similar known name, used in remedies."""
    return get_close_matches(name, known, n=1, cutoff=0)[0]
