"""Recipes by name, by file and by flags; and back into text."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path as File
from typing import Any, TypedDict, Unpack

from quantkit.core import manifest
from quantkit.core.errors import InputError, ResourceError
from quantkit.core.recipe import Recipe
from quantkit.core.registry import names, nearest
from quantkit.recipes import document as yaml
from quantkit.recipes.document import Document, Path
from quantkit.recipes.schema import Family, document_of, family_of, recipe_of

MANIFEST = manifest.FILE_NAME
MANIFEST_BYTES = 100_000_000
SHIPPED = File(__file__).parent
DEFAULT = "gptq"
MAX_EXTENDS = 8

# Where nobody stated a format and the shipped one cannot hold an asymmetric grid.
ASYMMETRIC = {"gptq": "gptq-v2"}


@dataclass(frozen=True)
class RecipeInfo:
    """A shipped recipe."""

    name: str
    description: str
    path: File


class Flags(TypedDict, total=False):
    """The parts of a recipe that have a flag of their own; None means not stated."""

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
    """The shipped recipes, by name.

    Example:
        >>> "gptq" in [info.name for info in quantkit.list_recipes()]
        True
    """
    paths = sorted(SHIPPED.glob("*.yaml"), key=lambda path: path.stem)
    return tuple(RecipeInfo(p.stem, _read(p).data.get("description", ""), p) for p in paths)


def load_recipe(name_or_path: str) -> Recipe:
    """A shipped recipe by its name, one of yours by its file, or that of an artifact by its folder.

    Example:
        >>> quantkit.load_recipe("nf4").format
        'bitsandbytes'

    A file ends in `.yaml`, or is a path with a slash; an artifact's recipe is in its quantkit.json.

    Raises:
        InputError: no such recipe, or all that is wrong with it.
    """
    return recipe_of(_resolved(_find(name_or_path)))


def build_recipe(
    recipe: str | None = None, *, settings: Sequence[str] = (), **flags: Unpack[Flags]
) -> Recipe:
    """The recipe that flags and `key=value` settings make of a base; later ones win.

    Example:
        >>> recipe = quantkit.build_recipe("gptq", bits=3, settings=["options.damp=0.05"])
        >>> recipe.scheme.bits, recipe.options["damp"]
        (3, 0.05)

    The base is `recipe` (a name or a file), or else the shipped recipe called as the method, or
    else `gptq`. Format `gptq` gives way to `gptq-v2` where the grid is asymmetric, unless it was
    stated by flag, setting or a file of yours.

    Raises:
        InputError: all that is wrong, each with the flag or line it came from.
    """
    base = _find(recipe) if recipe else _method_base(flags.get("method") or DEFAULT)
    document = _resolved(base).merged(_flags(flags))
    for setting in settings:
        document = document.merged(_setting(setting))
    return recipe_of(_holding(document))


def dump_recipe(recipe: Recipe) -> str:
    """YAML that `load_recipe` reads back to an equal recipe."""
    return yaml.dump(document_of(recipe))


def load_family(model_type: str) -> Family | None:
    """What has to be said of models of this `model_type`; None for most."""
    families = (family_of(_read(path)) for path in sorted(SHIPPED.glob("families/*.yaml")))
    return next((family for family in families if model_type in family.model_types), None)


def _find(name_or_path: str) -> File:
    path = File(name_or_path).expanduser()
    if (path / MANIFEST).is_file():
        return path / MANIFEST
    if path.suffix in (".yaml", ".yml", ".json") or len(path.parts) > 1:
        if not path.is_file():
            what = f"no recipe file `{name_or_path}`"
            raise InputError(what, hint="quantkit recipes list")
        return path
    return _shipped(name_or_path)


def _shipped(name: str) -> File:
    known = tuple(sorted(path.stem for path in SHIPPED.glob("*.yaml")))
    if name not in known:
        raise InputError(
            f"unknown recipe `{name}`",
            why=f"known: {', '.join(known)}; a file needs its suffix, `{name}.yaml`",
            hint=f"--recipe {nearest(name, known)}",
        )
    return SHIPPED / f"{name}.yaml"


def _method_base(method: str) -> File:
    name, known = method.replace("_", "-"), names("methods")
    if name not in known:
        raise InputError(
            f"unknown method `{method}`",
            why=f"known: {', '.join(known)}",
            hint=f"--method {nearest(name, known)}",
        )
    return _shipped(name)


def _read(path: File) -> Document:
    """The file's own values, named for the file where it states no name."""
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
        hint = "a folder that quantkit made, or a .yaml file"
        raise InputError(f"{path} holds no recipe", hint=hint)
    return json.dumps(recipe, ensure_ascii=False)


def _resolved(path: File) -> Document:
    """The file laid on what it extends, on what that extends, and so on."""
    chain = [_read(path)]
    while "extends" in chain[-1].data:
        name = chain[-1].data.pop("extends")
        if not isinstance(name, str) or len(chain) > MAX_EXTENDS:
            where = chain[-1].place(("extends",))
            raise InputError(f"{where}: extends: the name of one shipped recipe is wanted")
        chain.append(_read(_shipped(name)))
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
    if not equals or not all(path):
        raise InputError(
            f"--set {setting}: a key and a value are wanted", hint="--set options.damp=0.05"
        )
    data: dict[str, Any] = {}
    _put(data, path, yaml.parse_value(text, f"--set {setting}"))
    return Document(data, {path: f"--set {key.strip()}"})


def _put(data: dict[str, Any], path: Path, value: Any) -> None:
    *way, last = path
    for step in way:
        data = data.setdefault(str(step), {})
    data[str(last)] = value


def _holding(document: Document) -> Document:
    """The document with a format that holds its grid, if the format is nobody's own choice."""
    name = document.data.get("format")
    scheme = document.data.get("scheme")
    asymmetric = isinstance(scheme, dict) and scheme.get("symmetric") is False
    shipped = document.place(("format",)).startswith(str(SHIPPED))
    if asymmetric and shipped and name in ASYMMETRIC:
        return document.merged(Document({"format": ASYMMETRIC[name]}, {}))
    return document
