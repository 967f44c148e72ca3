"""Loads recipes by name, file or flags, and writes them as YAML."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path as File
from typing import Any, TypedDict, Unpack

from quantkit.core import manifest
from quantkit.core.errors import InputError, RefusedError, ResourceError
from quantkit.core.facts import LinearFacts
from quantkit.core.format import Format
from quantkit.core.method import Method
from quantkit.core.recipe import Recipe
from quantkit.core.registry import find, load, names, nearest
from quantkit.core.scheme import Scheme
from quantkit.recipes import document as yaml
from quantkit.recipes.document import Document, Path
from quantkit.recipes.schema import Family, document_of, family_of, recipe_of

MANIFEST = manifest.FILE_NAME
MANIFEST_BYTES = 100_000_000
SHIPPED = File(__file__).parent
DEFAULT = "gptq"
MAX_EXTENDS = 8
METHOD_LABEL = "method "
"""Where values come from that a method's facts make, before its name."""
ANY_LINEAR = LinearFacts("any", 4096, 4096)

# Replaces a shipped format that cannot store an asymmetric grid, unless the user set the format.
ASYMMETRIC = {"gptq": "gptq-v2"}


@dataclass(frozen=True)
class RecipeInfo:
    """A shipped recipe; its file is None where the facts of the method of its name make it."""

    name: str
    description: str
    path: File | None


class Flags(TypedDict, total=False):
    """The settings of a recipe that have their own flag; None means not set."""

    method: str | None
    bits: int | None
    group_size: str | int | None
    symmetric: bool | None
    format: str | None
    calibration: str | None
    samples: int | None
    sequence_length: int | None


FLAG_PATHS: dict[str, Path] = {
    "method": ("method",),
    "format": ("format",),
    "bits": ("scheme", "bits"),
    "group_size": ("scheme", "group_size"),
    "symmetric": ("scheme", "symmetric"),
    "calibration": ("calibration", "text"),
    "samples": ("calibration", "samples"),
    "sequence_length": ("calibration", "sequence_length"),
}


def list_recipes() -> tuple[RecipeInfo, ...]:
    """The shipped recipes and those of methods that no file is called as, by name.

    Example:
        >>> "gptq" in [info.name for info in quantkit.list_recipes()]
        True
    """
    files = _files()
    return tuple(
        RecipeInfo(name, _named(name).data.get("description", ""), files.get(name))
        for name in _names()
    )


def load_recipe(name_or_path: str) -> Recipe:
    """A recipe: a shipped one by name, your own by file, or an artifact's by its folder.

    Example:
        >>> quantkit.load_recipe("nf4").format
        'bitsandbytes'

    A file is a path that ends in `.yaml` or contains a slash. The recipe of an artifact is in its
    quantkit.json.

    Raises:
        InputError: the recipe does not exist, or is invalid; lists all errors.
    """
    return recipe_of(_resolved(_own(name_or_path)))


def build_recipe(
    recipe: str | None = None, *, settings: Sequence[str] = (), **flags: Unpack[Flags]
) -> Recipe:
    """The recipe from a base, flags and `key=value` settings; later ones take precedence.

    Example:
        >>> recipe = quantkit.build_recipe("gptq", bits=3, settings=["options.damp=0.05"])
        >>> recipe.scheme.bits, recipe.options["damp"]
        (3, 0.05)

    The base is `recipe` (a name or a file), or the recipe with the name of the method, or
    `gptq`. Format `gptq` becomes `gptq-v2` if the grid is asymmetric, unless a flag, a setting or
    your own file sets the format. Another method than the base's drops the base's options.

    Raises:
        InputError: lists all errors, each with its flag or line.
    """
    base = _own(recipe) if recipe else _named(find("methods", flags.get("method") or DEFAULT))
    document = _resolved(base)
    if (method := flags.get("method")) and method != document.data.get("method"):
        document = document.without("options")  # they are another method's
    document = document.merged(_flags(flags))
    for setting in settings:
        document = document.merged(_setting(setting))
    return recipe_of(_holding(document))


def dump_recipe(recipe: Recipe) -> str:
    """YAML that `load_recipe` reads back to an equal recipe."""
    return yaml.dump(document_of(recipe))


def load_family(model_type: str) -> Family | None:
    """The recipe notes and overrides for models of this `model_type`; None for most."""
    families = map(_family, sorted(SHIPPED.glob("families/*.yaml")))
    return next((family for family in families if model_type in family.model_types), None)


@cache
def _family(path: File) -> Family:
    return family_of(_read(path))


def with_family(recipe: Recipe, model_type: str) -> tuple[Recipe, tuple[str, ...]]:
    """The recipe for a model of this `model_type`, and what people have to know of its family.

    The family's overrides come before the recipe's own, which win.
    """
    family = load_family(model_type)
    if family is None:
        return recipe, ()
    return replace(recipe, overrides=(*family.overrides, *recipe.overrides)), family.notes


def _own(name_or_path: str) -> Document:
    """What a recipe says itself, apart from what it extends."""
    path = File(name_or_path).expanduser()
    if (path / MANIFEST).is_file():
        return _read(path / MANIFEST)
    if path.suffix in (".yaml", ".yml", ".json") or len(path.parts) > 1:
        if not path.is_file():
            what = f"no recipe file `{name_or_path}`"
            raise InputError(what, hint="quantkit recipes list")
        return _read(path)
    return _named(name_or_path)


def _files() -> dict[str, File]:
    return {path.stem: path for path in SHIPPED.glob("*.yaml")}


def _names() -> tuple[str, ...]:
    return tuple(sorted({*_files(), *names("methods")}))


def _named(name: str) -> Document:
    """The recipe called `name`: a shipped file, or what a method's own facts make."""
    if file := _files().get(name):
        return _read(file)
    if name in names("methods"):
        return _of_method(load("methods", name, "METHOD"))
    known = _names()
    raise InputError(
        f"unknown recipe `{name}`",
        why=f"known: {', '.join(known)}; a file needs its suffix, `{name}.yaml`",
        hint=f"--recipe {nearest(name, known)}",
    )


def _of_method(method: Method) -> Document:
    """The first grid of a method, in the default's format or else the first one that holds it."""
    label = METHOD_LABEL + method.name
    grid, bits = method.pairs[0]
    formats = (_named(DEFAULT).data["format"], *names("formats"))
    sizes = load("grids", grid, "GRID").group_sizes[:1]
    for size, output in product((*sizes, None), formats):
        found: Format = load("formats", output, "FORMAT")
        if found.check(Scheme(grid, bits, size).stored(), ANY_LINEAR) is None:
            scheme = {"grid": grid, "bits": bits, "group_size": "auto" if size else "channel"}
            data = {"name": method.name, "description": method.summary, "method": method.name}
            return Document(data | {"format": found.name, "scheme": scheme}, {(): label})
    raise RefusedError(
        f"no format holds {grid} with {bits} bits, which method {method.name} makes",
        hint="--method gptq",
    )


def _read(path: File) -> Document:
    """The values in the file; the name defaults to that of the file."""
    made = path.name == MANIFEST
    try:
        with path.open("rb") as file:
            raw = file.read((MANIFEST_BYTES if made else yaml.MAX_BYTES) + 1)
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 at byte {error.start}") from None
    except OSError as error:
        raise ResourceError(f"cannot read {path}", why=error.strerror) from None
    document = yaml.parse(_manifested(text, path) if made else text, str(path))
    return Document({"name": path.stem, **document.data}, document.places)


def _manifested(text: str, path: File) -> str:
    """The recipe in an artifact's manifest."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    recipe = found.get("recipe") if isinstance(found, dict) else None
    if not isinstance(recipe, dict):
        hint = "use the folder of a quantkit artifact, or a .yaml file"
        raise InputError(f"{path} contains no recipe", hint=hint)
    return json.dumps(recipe, ensure_ascii=False)


def _resolved(document: Document) -> Document:
    """The document merged into the recipe that it extends, recursively."""
    chain = [document]
    while "extends" in chain[-1].data:
        name = chain[-1].data.pop("extends")
        if not isinstance(name, str) or len(chain) > MAX_EXTENDS:
            where = chain[-1].place(("extends",))
            raise InputError(f"{where}: extends: expected the name of a shipped recipe")
        chain.append(_named(name))
    document = chain.pop()
    while chain:
        document = document.merged(chain.pop())
    return document


def _flags(flags: Flags) -> Document:
    data: dict[str, Any] = {}
    places: dict[Path, str] = {}
    for key, value in flags.items():
        if value is None:
            continue
        path = FLAG_PATHS[key]
        number = key == "group_size" and str(value).isdecimal()
        _put(data, path, int(str(value)) if number else value)
        places[path] = "--asymmetric" if value is False else f"--{key.replace('_', '-')}"
    return Document(data, places)


def _setting(setting: str) -> Document:
    key, equals, text = setting.partition("=")
    path = tuple(key.strip().split("."))
    if not equals or not all(path) or len(path) > yaml.MAX_DEPTH:
        raise InputError(f"--set {setting}: expected key=value", hint="--set options.damp=0.05")
    data: dict[str, Any] = {}
    _put(data, path, yaml.parse_value(text, f"--set {setting}"))
    return Document(data, {path: f"--set {key.strip()}"})


def _put(data: dict[str, Any], path: Path, value: Any) -> None:
    *way, last = path
    for step in way:
        data = data.setdefault(str(step), {})
    data[str(last)] = value


def _holding(document: Document) -> Document:
    """The document, with a format that can store its grid unless the user set the format."""
    name = document.data.get("format")
    scheme = document.data.get("scheme")
    asymmetric = isinstance(scheme, dict) and scheme.get("symmetric") is False
    shipped = document.place(("format",)).startswith((str(SHIPPED), METHOD_LABEL))
    if asymmetric and shipped and name in ASYMMETRIC:
        return document.merged(Document({"format": ASYMMETRIC[name]}, {}))
    return document
