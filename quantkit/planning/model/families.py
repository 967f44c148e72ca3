"""A config.json's fields as its family reads them: checked, renamed, and filled in where missing.

`families.toml` holds what differs from family to family. A model_type that it does not list is read
as a plain Llama, with nothing filled in.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from math import ceil, prod
from typing import Any

from quantkit.core.errors import InputError

LARGEST = 1 << 40
MOST_LAYERS = 4096


@dataclass(frozen=True)
class Family:
    """What the code of one model_type does that no field of a config states.

    `pattern`: which layers are full attention, and what the others are. `block`, `model`: tensors
    of every block and around them, beside those of `parameters`. `beside`: fields of its config
    that size nothing.
    """

    name: str
    names: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    derived: Mapping[str, str] = field(default_factory=dict)
    traits: Mapping[str, Any] = field(default_factory=dict)
    pattern: Mapping[str, Any] = field(default_factory=dict)
    recurrent: str | None = None
    beside: tuple[str, ...] = ()
    dense_width: str = "intermediate_size"
    shared_width: str | None = None
    block: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    model: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@cache
def _table() -> Mapping[str, Any]:
    path = resources.files("quantkit.planning.model") / "families.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))


def known() -> tuple[str, ...]:
    """The model types that families.toml describes."""
    return tuple(_table()["families"])


def refused_as(model_type: str) -> str | None:
    """What a model_type is where it is no decoder: an "encoder" or "encoder-decoder"."""
    kinds: Mapping[str, list[str]] = _table()["no_decoders"]
    return next((kind for kind, names in kinds.items() if model_type in names), None)


def is_custom(model_type: str) -> bool:
    """Whether a model_type of the table is one whose code lies in its repository."""
    return model_type in _table()["custom"]["types"]


def recurrent(kind: str) -> Mapping[str, Any]:
    """Sizes and tensors of a mixer whose cache does not grow; `kind` is one of families.toml."""
    found: Mapping[str, Any] = _table()["recurrent"][kind]
    return found


def find(model_type: str) -> Family | None:
    """The family of a model_type, None where it is not listed."""
    for name, row in _table()["families"].items():
        if model_type in (name, *row.get("names", ())):
            return Family(name, **row)
    return None


@cache
def _read_by(family: str) -> frozenset[str]:
    """Every name of a field that the code reads, or that the table does for a family."""
    table = _table()
    names = set(table["fields"]["read"])
    for aliases in table["aliases"].values():
        names.update(aliases)
    rows = (table["aliases"], table["traits"], table["families"][family], table["recurrent"])
    return frozenset(names | set(re.findall(r"[a-z][a-z0-9_]+", repr(rows))))


@dataclass(frozen=True)
class Fields:
    """The fields of one text model; names are those of today's Llama vocabulary.

    A method that finds no such value raises InputError with the field's name.
    """

    config: Mapping[str, Any]
    family: Family

    def raw(self, name: str) -> Any:
        """The value in the file, else what the family fills in, else None."""
        found = self._written_as(name)
        return self.config[found] if found else self.family.defaults.get(name)

    def left_out(self, name: str) -> bool:
        """Whether the file does not have a field that the family would fill in by a number."""
        filled = name in self.family.defaults and name not in self.family.derived
        return filled and self._written_as(name) is None

    def _written_as(self, name: str) -> str | None:
        aliases = _table()["aliases"].get(name, (name,))
        return next((alias for alias in aliases if alias in self.config), None)

    def maybe(self, name: str, *, least: int = 0, most: int = LARGEST) -> int | None:
        """A whole number within bounds; None where it is missing or null."""
        value = self.raw(name)
        if value is None or (value == "auto" and name == "time_step_rank"):
            return self._derived(name)
        written = self._written_as(name) or name
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise InputError(
                f"config.json: {written} is {value!r:.60}",
                why=f"It should be a whole number from {least} to {most}.",
            )
        return value

    def _derived(self, name: str) -> int | None:
        if name == "time_step_rank":
            return ceil(self.size("hidden_size") / 16)
        rule = self.family.derived.get(name)
        return self.evaluate(rule) if rule else None

    def size(self, name: str, *, most: int = LARGEST) -> int:
        """A whole number of at least 1 that has to be there."""
        value = self.maybe(name, least=1, most=most)
        if value is None:
            raise InputError(
                f"config.json: {name} is missing",
                why=f"A {self.family.name} model cannot be sized without it.",
            )
        return value

    def flag(self, name: str) -> bool:
        """A trait of the family, or a true or false of the config; a missing one is false."""
        trait = (_table()["traits"] | self.family.traits).get(name, name)
        if isinstance(trait, bool):
            return trait
        value = self.raw(trait)
        if value is None or isinstance(value, bool):
            return bool(value)
        raise InputError(
            f"config.json: {trait} is {value!r:.60}", why="It should be true or false."
        )

    def trait(self, name: str) -> int:
        """A number that the family's code fixes."""
        return int((_table()["traits"] | self.family.traits)[name])

    def many(
        self, name: str, kind: type, *, length: int | None = None, most: int = LARGEST
    ) -> list[Any] | None:
        """A list of whole numbers or texts, None where it is missing or null."""
        value = self.raw(name)
        if value is None:
            return None
        if isinstance(value, list) and len(value) > most:
            raise InputError(f"config.json: {name} has {len(value)} entries for {most} layers")
        if not isinstance(value, list) or any(type(entry) is not kind for entry in value):
            raise InputError(f"config.json: {name} is no list of {kind.__name__}")
        if length is not None and len(value) != length:
            raise InputError(f"config.json: {name} has {len(value)} entries for {length} layers")
        return value

    def unread(self) -> tuple[str, ...]:
        """Fields that may tell of tensors or cache, and that neither table nor code reads.

        Texts and fractions size nothing, nor does what is off or empty.
        """
        listed = _table()["fields"]
        read, beside = _read_by(self.family.name), listed["beside"]
        return tuple(
            name
            for name, value in self.config.items()
            if value
            and not isinstance(value, str | float)
            and name not in read
            and not any(fnmatchcase(name, pattern) for pattern in beside)
            and not (name in listed["same"] and value == self.raw(listed["same"][name]))
        )

    def evaluate(self, rule: str) -> int:
        """A sum of products of fields and numbers, as families.toml writes sizes."""
        total = 0
        for term in re.findall(r"[+-]?[^+-]+", rule):
            factors = term.lstrip("+-").split("*")
            product = prod(int(f) if f.isdecimal() else self.size(f) for f in factors)
            total += -product if term.startswith("-") else product
        return total

    def shaped(self, rows: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
        """The rows of tensors that this config has, by name, each with its shape in numbers."""
        return [
            (name, {**row, "shape": tuple(self.evaluate(rule) for rule in row["shape"])})
            for name, row in rows.items()
            if "when" not in row or self.flag(row["when"])
        ]
