"""The schema of recipe files: validates YAML values and builds the core's frozen types."""

import math
import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, Literal, NoReturn, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from quantkit.core.errors import InputError
from quantkit.core.gate import parse_gate
from quantkit.core.limit import Gate, Undecided
from quantkit.core.recipe import (
    SPREADS,
    CalibrationSpec,
    ExpertTokens,
    GroupSize,
    Override,
    Recipe,
    SchemeSpec,
)
from quantkit.core.registry import load, names, nearest
from quantkit.core.scheme import Activation, KVCache
from quantkit.recipes.document import Document, Path

MAX_PATTERN = 200
UNKNOWN_KEY = "unknown key"
SCHEMA = "quantkit recipes schema"
INNER = ("scheme", "calibration", "gate_policy")
"""Blocks whose keys people often write one level too high; errors then name the full key."""

Block = TypeVar("Block", bound=BaseModel)


@dataclass(frozen=True)
class Family:
    """Facts on a model family that tracing does not show; most families need none.

    `notes` are shown to the user; `overrides` apply before the recipe's own.
    """

    name: str
    model_types: tuple[str, ...]
    notes: tuple[str, ...]
    overrides: tuple[Override, ...]


def _fault(message: str, hint: str = "") -> NoReturn:
    raise PydanticCustomError("fault", "{message}", {"message": message, "hint": hint})


def _entry(folder: str) -> AfterValidator:
    """Validates the name of a registry entry; accepts `_` for `-`, returns its own spelling."""

    def check(name: str) -> str:
        key, known = name.replace("_", "-"), names(folder)
        if key not in known:
            hint = nearest(key, known)
            _fault(f"unknown {folder.removesuffix('s')} `{name}`; known: {', '.join(known)}", hint)
        return key

    return AfterValidator(check)


def _group_size(value: Any) -> Any:
    if value in ("auto", *SPREADS) or (type(value) is int and value > 0):
        return value
    named = ", ".join(f"`{name}`" for name in ("auto", *SPREADS))
    _fault(f"expected {named} or a number of inputs, not `{value}`", "128, 64 or 32")


def _pattern(match: str) -> str:
    if not 0 < len(match) <= MAX_PATTERN:
        _fault(f"a pattern must have 1 to {MAX_PATTERN} characters")
    if match.startswith("re:"):
        try:
            re.compile(match[3:])
        except (re.error, RecursionError) as error:
            _fault(f"invalid regular expression: {error}", "a glob such as `*.down_proj`")
    return match


def _gate(text: str) -> Gate:
    try:
        return parse_gate(text)
    except InputError as error:
        _fault(f"{error.what}; {error.why}", error.hint or "")


def _option(value: Any) -> Any:
    if isinstance(value, str | int | None) or (isinstance(value, float) and math.isfinite(value)):
        return value
    _fault(f"expected text, a finite number, true, false or null, not {_shown(value)}")


Bits = Literal[2, 3, 4, 5, 6, 7, 8]
Size = Annotated[GroupSize, BeforeValidator(_group_size)]
OptionValue = Annotated[Any, AfterValidator(_option)]
Count = Annotated[int, Field(gt=0)]
Line = Annotated[str, Field(min_length=1, max_length=1000)]


class _Block(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class SchemeBlock(_Block):
    """`scheme:`."""

    grid: Annotated[str, _entry("grids")] = SchemeSpec.grid
    bits: Bits = 4
    group_size: Size = SchemeSpec.group_size
    symmetric: bool = SchemeSpec.symmetric
    activation: Activation | None = SchemeSpec.activation
    double_quant: bool = SchemeSpec.double_quant


class OverrideBlock(_Block):
    """An item of `overrides:`."""

    match: Annotated[str, AfterValidator(_pattern)]
    skip: bool = False
    grid: Annotated[str, _entry("grids")] | None = None
    bits: Bits | None = None
    group_size: Size | None = None
    symmetric: bool | None = None

    def built(self) -> Override:
        """The same as the core's type."""
        return Override(**self.model_dump())


def _states_something(block: OverrideBlock) -> OverrideBlock:
    stated = (block.grid, block.bits, block.group_size, block.symmetric)
    changes = any(value is not None for value in stated)
    if block.skip == changes:
        _fault(
            "an override must either skip, or set grid, bits, group_size or symmetric",
            "`skip: true`",
        )
    return block


class CalibrationBlock(_Block):
    """`calibration:`."""

    text: Line = CalibrationSpec.text
    samples: Annotated[int, Field(ge=0)] = CalibrationSpec.samples
    sequence_length: Count = CalibrationSpec.sequence_length
    experts: ExpertTokens = CalibrationSpec.experts
    compensate: bool = CalibrationSpec.compensate


def _compares_something(block: CalibrationBlock) -> CalibrationBlock:
    if block.compensate and not block.samples:
        _fault("`compensate` compares inputs, and there are no samples", "`samples: 128`")
    return block


class GatePolicyBlock(_Block):
    """`gate_policy:`."""

    undecided: Undecided = Recipe.undecided


class RecipeFile(_Block):
    """A recipe file, with `extends` resolved."""

    name: Line
    description: Annotated[str, Field(max_length=1000)] = ""
    method: Annotated[str, _entry("methods")]
    format: Annotated[str, _entry("formats")]
    scheme: SchemeBlock = SchemeBlock()
    kv_cache: KVCache | None = Recipe.kv_cache
    options: dict[str, OptionValue] = {}
    overrides: list[Annotated[OverrideBlock, AfterValidator(_states_something)]] = []
    calibration: Annotated[CalibrationBlock, AfterValidator(_compares_something)] = (
        CalibrationBlock()
    )
    gates: list[Annotated[str, AfterValidator(_gate)]] = []
    gate_policy: GatePolicyBlock = GatePolicyBlock()
    engines: list[Annotated[str, _entry("engines")]] = []
    allow_partial: bool = Recipe.allow_partial


_BLOCKS: dict[str, type[BaseModel]] = {
    "scheme": SchemeBlock,
    "overrides": OverrideBlock,
    "calibration": CalibrationBlock,
    "gate_policy": GatePolicyBlock,
}


class FamilyFile(_Block):
    """A file under families/."""

    name: Line
    model_types: Annotated[list[Line], Field(min_length=1)]
    notes: list[Line] = []
    overrides: list[Annotated[OverrideBlock, AfterValidator(_states_something)]] = []


def recipe_of(document: Document) -> Recipe:
    """The recipe in a document.

    Raises:
        InputError: the document is invalid; lists all errors, each with its place.
    """
    file = _validated(RecipeFile, document, "recipe")
    gates: list[Any] = file.gates  # the validator made Gates of the strings
    return Recipe(
        name=file.name,
        method=file.method,
        format=file.format,
        description=file.description,
        scheme=SchemeSpec(**file.scheme.model_dump()),
        kv_cache=file.kv_cache,
        options=file.options,
        overrides=tuple(block.built() for block in file.overrides),
        calibration=CalibrationSpec(**file.calibration.model_dump()),
        gates=tuple(gates),
        undecided=file.gate_policy.undecided,
        engines=tuple(file.engines),
        allow_partial=file.allow_partial,
    )


def family_of(document: Document) -> Family:
    """The family in a document; raises as `recipe_of` does."""
    file = _validated(FamilyFile, document, "family")
    overrides = tuple(block.built() for block in file.overrides)
    return Family(file.name, tuple(file.model_types), tuple(file.notes), overrides)


def document_of(recipe: Recipe) -> dict[str, Any]:
    """Plain values that `recipe_of` converts to an equal recipe; omits empty parts."""
    scheme = recipe.scheme
    data: dict[str, Any] = {
        "name": recipe.name,
        "description": recipe.description,
        "method": recipe.method,
        "format": recipe.format,
        "scheme": {key: getattr(scheme, key) for key in SchemeBlock.model_fields},
        "kv_cache": recipe.kv_cache or "",
        "options": dict(recipe.options),
        "overrides": [_stated(override) for override in recipe.overrides],
        "calibration": {
            key: getattr(recipe.calibration, key) for key in CalibrationBlock.model_fields
        },
        "gates": [str(gate) for gate in recipe.gates],
        "gate_policy": {"undecided": recipe.undecided} if recipe.undecided == "fail" else {},
        "engines": list(recipe.engines),
        "allow_partial": recipe.allow_partial,
    }
    return {key: value for key, value in data.items() if value not in ("", {}, [], False)}


def _stated(override: Override) -> dict[str, Any]:
    values = {key: getattr(override, key) for key in OverrideBlock.model_fields}
    return {k: v for k, v in values.items() if v is not None and (k != "skip" or v)}


def _validated(shape: type[Block], document: Document, noun: str) -> Block:
    try:
        return shape.model_validate(document.data)
    except ValidationError as error:
        found = {_path(e, document.data): _told(shape, e) for e in error.errors()}
    faults = {path: _typed(document, path, fault) for path, fault in found.items()}
    order = {place: index for index, place in enumerate(document.places.values())}
    faults = dict(sorted(faults.items(), key=lambda item: order.get(document.place(item[0]), -1)))
    lines = [f"{_where(document, path)}: {what}" for path, (what, _) in faults.items()]
    hint = next((hint for _, hint in faults.values() if hint), None)
    if len(lines) == 1:
        raise InputError(lines[0], hint=hint)
    name = document.data.get("name")
    raise InputError(f"{noun} `{name}` has {len(lines)} errors", why="\n".join(lines), hint=hint)


def _typed(document: Document, path: Path, fault: tuple[str, str]) -> tuple[str, str]:
    """The fault with its hint as a flag or setting to type, if one sets exactly this key."""
    (what, hint), place = fault, document.place(path)
    stated = place.startswith("--") and path in document.places
    if not (hint and stated) or hint == SCHEMA:
        return fault
    value: Any = document.data
    for step in path:
        value = value[step]
    if what == UNKNOWN_KEY:
        return what, f"--set {'.'.join([*map(str, path[:-1]), hint])}={value}"
    option = f"{place}=" if place.startswith("--set ") else f"{place} "
    words = tuple(re.split(", | or ", hint))
    if type(value) is int and all(word.isdecimal() for word in words):
        return what, option + min(words, key=lambda word: abs(int(word) - value))
    near = get_close_matches(str(value), words, n=1, cutoff=0.4)
    return what, option + (near or words)[0]


def _where(document: Document, path: Path) -> str:
    """Place and key; a flag that sets exactly this key names both."""
    place = document.place(path)
    says_both = place.startswith("--") and path in document.places
    return place if says_both else f"{place}: {'.'.join(map(str, path))}"


def _path(error: ErrorDetails, data: Any) -> Path:
    """The path of an error: pydantic's location as far as it exists, or one missing key."""
    path: Path = ()
    for step in error["loc"]:
        inside = step in data if isinstance(data, dict) else isinstance(data, list)
        if not inside:
            return (*path, step) if error["type"] == "missing" else path
        path, data = (*path, step), data[step]
    return path


def _told(shape: type[BaseModel], error: ErrorDetails) -> tuple[str, str]:
    """The message and the hint for one error of pydantic."""
    context, given, kind = error.get("ctx", {}), _shown(error["input"]), error["type"]
    if kind == "fault":
        return context["message"], context["hint"]
    if kind == "extra_forbidden":
        return _unknown(shape, *map(str, error["loc"]))
    if kind == "missing":
        return "is missing", ""
    if kind == "literal_error":
        legal = context["expected"]
        return f"expected {legal}, not {given}", legal.replace("'", "")
    message = error["msg"].removeprefix("Input should be ")
    return f"expected {message[:1].lower()}{message[1:]}, not {given}", ""


def _unknown(shape: type[BaseModel], *path: str) -> tuple[str, str]:
    """The message for an unknown key, and the most similar known key as its hint."""
    *way, key = path
    own = tuple((_BLOCKS[way[0]] if way else shape).model_fields)
    told = {
        f"options.{name}"
        for method in names("methods")
        for name in load("methods", method, "METHOD").options.__dataclass_fields__
    }
    inner = [f"{block}.{name}" for block in INNER for name in _BLOCKS[block].model_fields]
    meant = {full.rpartition(".")[2]: full for full in (*own, *([] if way else (*told, *inner)))}
    if near := get_close_matches(key, meant, n=1):
        return UNKNOWN_KEY, meant[near[0]]
    return f"{UNKNOWN_KEY}; known here: {', '.join(own)}", SCHEMA


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
