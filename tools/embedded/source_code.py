"""Source code: the drawn programs, and idioms of Python, JavaScript, C and SQL around one record."""

from __future__ import annotations

from dataclasses import dataclass

from . import lexicon
from .dice import Dice
from .programs import C, JAVASCRIPT, PYTHON, camel, program

# record, its plural, its fields with Python types
_RECORDS = (
    ("order", "orders", (("customer", "str"), ("quantity", "int"), ("price", "float"), ("city", "str"))),
    ("sensor", "sensors", (("label", "str"), ("reading", "float"), ("channel", "int"), ("room", "str"))),
    ("book", "books", (("title", "str"), ("author", "str"), ("pages", "int"), ("price", "float"))),
    ("ticket", "tickets", (("owner", "str"), ("priority", "int"), ("status", "str"), ("hours", "float"))),
    ("player", "players", (("name", "str"), ("team", "str"), ("score", "int"), ("height", "float"))),
    ("route", "routes", (("origin", "str"), ("target", "str"), ("distance", "float"), ("stops", "int"))),
    ("account", "accounts", (("holder", "str"), ("balance", "float"), ("branch", "str"), ("level", "int"))),
    ("plant", "plants", (("species", "str"), ("bed", "str"), ("height", "float"), ("age", "int"))),
    ("invoice", "invoices", (("client", "str"), ("amount", "float"), ("month", "int"), ("currency", "str"))),
    ("vessel", "vessels", (("name", "str"), ("port", "str"), ("crew", "int"), ("tonnage", "float"))),
)  # fmt: skip


@dataclass(frozen=True)
class Record:
    """A record type with the three fields that a snippet uses."""

    name: str
    plural: str
    fields: list[tuple[str, str]]
    text: str
    number: str
    bound: int
    suffix: str

    @property
    def type_name(self) -> str:
        return (self.name + "_" + self.suffix).title().replace("_", "")


def _record(dice: Dice) -> Record:
    name, plural, fields = dice.pick(_RECORDS)
    chosen = dice.sample(fields, dice.integer(3, 4))
    texts = [field for field, kind in chosen if kind == "str"]
    numbers = [field for field, kind in chosen if kind != "str"]
    return Record(name, plural, chosen, dice.pick(texts), dice.pick(numbers), dice.integer(1, 90),
                  dice.pick(("entry", "record", "row", "data", "info", lexicon.coined(dice))))  # fmt: skip


def _value(dice: Dice, kind: str) -> str:
    if kind == "int":
        return str(dice.integer(1, 99))
    if kind == "float":
        return f"{dice.integer(1, 99)}.{dice.integer(0, 9)}"
    return f'"{lexicon.surname(dice)}"'


def _python(dice: Dice) -> str:
    r = _record(dice)
    fields = "\n".join(f"    {field}: {kind}" for field, kind in r.fields)
    total, group = f"total_{r.number}", f"{r.plural}_by_{r.text}"
    parts = [
        f'@dataclass\nclass {r.type_name}:\n    """One {r.name} of the list."""\n\n{fields}',
        f'def {total}({r.plural}: list[{r.type_name}]) -> float:\n    """Return the sum of {r.number} over all {r.plural}."""\n'
        f"    return sum({r.name}.{r.number} for {r.name} in {r.plural})",
        f"def {group}({r.plural}: list[{r.type_name}]) -> dict[str, list[{r.type_name}]]:\n    result: dict[str, list[{r.type_name}]] = {{}}\n"
        f"    for {r.name} in {r.plural}:\n        result.setdefault({r.name}.{r.text}, []).append({r.name})\n    return result",
        f"def large_{r.plural}({r.plural}: list[{r.type_name}], limit: float = {r.bound}) -> list[{r.type_name}]:\n"
        f"    return [{r.name} for {r.name} in {r.plural} if {r.name}.{r.number} > limit]",
    ]  # fmt: skip
    rows = "\n".join(
        f"        {r.type_name}({', '.join(f'{f}={_value(dice, k)}' for f, k in r.fields)})," for _ in range(dice.integer(2, 4))
    )  # fmt: skip
    main = (f"def main() -> None:\n    {r.plural} = [\n{rows}\n    ]\n    print({total}({r.plural}))\n"
            f"    for {r.text}, group in {group}({r.plural}).items():\n        print({r.text}, len(group))")  # fmt: skip
    body = [parts[0], *dice.sample(parts[1:], 2), *([main] if dice.chance(0.6) else [])]
    return "from dataclasses import dataclass\n\n\n" + "\n\n\n".join(body) + "\n"


def _javascript(dice: Dice) -> str:
    r = _record(dice)
    total, loader = camel(f"total_{r.number}"), camel(f"load_{r.plural}")
    parts = [
        f"export function {total}({r.plural}) {{\n  return {r.plural}.reduce((sum, {r.name}) => sum + {r.name}.{r.number}, 0);\n}}",
        f"export async function {loader}(url) {{\n  const response = await fetch(url);\n  if (!response.ok) {{\n"
        f"    throw new Error(`cannot load {r.plural}: ${{response.status}}`);\n  }}\n  const {r.plural} = await response.json();\n"
        f"  return {r.plural}.filter(({r.name}) => {r.name}.{r.number} > {r.bound});\n}}",
        f"const by{r.text.capitalize()} = new Map();\nfor (const {r.name} of {r.plural}) {{\n  const list = by{r.text.capitalize()}.get({r.name}.{r.text}) ?? [];\n"
        f"  list.push({r.name});\n  by{r.text.capitalize()}.set({r.name}.{r.text}, list);\n}}",
        f"class {r.type_name} {{\n  constructor({', '.join(f for f, _ in r.fields)}) {{\n"
        + "".join(f"    this.{f} = {f};\n" for f, _ in r.fields) + "  }\n\n"
        f"  toString() {{\n    return `${{this.{r.text}}}: ${{this.{r.number}}}`;\n  }}\n}}",
    ]  # fmt: skip
    return "\n\n".join(dice.sample(parts, dice.integer(2, 4))) + "\n"


def _c(dice: Dice) -> str:
    r = _record(dice)
    kinds = {"str": "char {}[32];", "int": "int {};", "float": "double {};"}
    fields = "\n".join("    " + kinds[kind].format(field) for field, kind in r.fields)
    struct, best = f"struct {r.name}_{r.suffix}", f"largest_{r.number}"
    parts = [
        f"double sum_{r.number}(const {struct} *{r.plural}, int n) {{\n    double sum = 0.0;\n    for (int i = 0; i < n; i++) {{\n"
        f"        sum += {r.plural}[i].{r.number};\n    }}\n    return sum;\n}}",
        f"int {best}(const {struct} *{r.plural}, int n) {{\n    int best = 0;\n    for (int i = 1; i < n; i++) {{\n"
        f"        if ({r.plural}[i].{r.number} > {r.plural}[best].{r.number}) {{\n            best = i;\n        }}\n    }}\n    return best;\n}}",
        f"void print_{r.name}(const {struct} *{r.name}) {{\n    printf(\"%s %g\\n\", {r.name}->{r.text}, (double){r.name}->{r.number});\n}}",
    ]  # fmt: skip
    head = f"#include <stdio.h>\n\n{struct} {{\n{fields}\n}};"
    return "\n\n".join([head, *dice.sample(parts, dice.integer(1, 3))]) + "\n"


def _sql(dice: Dice) -> str:
    r = _record(dice)
    kinds = {"str": "TEXT NOT NULL", "int": "INTEGER NOT NULL", "float": "NUMERIC(10, 2)"}
    columns = ",\n".join(f"    {field} {kinds[kind]}" for field, kind in r.fields)
    names = ", ".join(field for field, _ in r.fields)
    rows = ",\n".join(
        f"    ({', '.join(_value(dice, kind).replace(chr(34), chr(39)) for _, kind in r.fields)})" for _ in range(dice.integer(2, 5))
    )  # fmt: skip
    queries = [
        f"SELECT {r.text}, COUNT(*) AS n, SUM({r.number}) AS total_{r.number}\nFROM {r.plural}\nGROUP BY {r.text}\nHAVING SUM({r.number}) > {r.bound}\nORDER BY total_{r.number} DESC;",
        f"UPDATE {r.plural}\nSET {r.number} = {r.number} + {dice.integer(1, 9)}\nWHERE {r.text} = '{lexicon.surname(dice)}';",
        f"SELECT {names}\nFROM {r.plural}\nWHERE {r.number} BETWEEN {r.bound} AND {r.bound + dice.integer(5, 60)}\nORDER BY {r.text}\nLIMIT {dice.integer(2, 50)};",
        f"CREATE INDEX {r.plural}_{r.text} ON {r.plural} ({r.text});",
        f"DELETE FROM {r.plural} WHERE {r.number} < {r.bound};",
    ]  # fmt: skip
    table = f"CREATE TABLE {r.plural} (\n    id INTEGER PRIMARY KEY,\n{columns}\n);"
    insert = f"INSERT INTO {r.plural} ({names}) VALUES\n{rows};"
    return "\n\n".join([table, insert, *dice.sample(queries, dice.integer(1, 4))]) + "\n"


def snippet(dice: Dice) -> tuple[str, str]:
    """A language's name and a piece of source code in it."""
    drawn = dice.integer(0, 6)
    if drawn < 3:
        language = (PYTHON, JAVASCRIPT, C)[drawn]
        return language.name, program(dice, language)
    return (("python", _python), ("javascript", _javascript), ("c", _c), ("sql", _sql))[drawn - 3][0], (
        _python, _javascript, _c, _sql)[drawn - 3](dice)  # fmt: skip


def source(dice: Dice) -> str:
    """A source file, now and then inside a Markdown fence with a sentence before it."""
    language, code = snippet(dice)
    if dice.chance(0.25):
        intro = dice.say("[The following {l} code is part of|An example in {l} from|From the sources of] "
                         "{n}:", l=language, n=lexicon.coined(dice))  # fmt: skip
        return f"{intro}\n\n```{language}\n{code.rstrip()}\n```"
    return code
