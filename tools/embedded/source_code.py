"""Source code: the drawn programs, and idioms of four languages around one record type."""

from collections.abc import Callable
from dataclasses import dataclass
from string import Template

from tools.embedded import idioms, lexicon
from tools.embedded.dice import Dice
from tools.embedded.lexicon import rows
from tools.embedded.programs import JAVASCRIPT, PYTHON, C, camel, program

# record, its plural, its fields with Python types
_RECORDS = rows("""
    order | orders | customer str | quantity int | price float | city str
    sensor | sensors | label str | reading float | channel int | room str
    book | books | title str | author str | pages int | price float
    ticket | tickets | owner str | priority int | status str | hours float
    player | players | name str | team str | score int | height float
    route | routes | origin str | target str | distance float | stops int
    account | accounts | holder str | balance float | branch str | level int
    plant | plants | species str | bed str | height float | age int
    invoice | invoices | client str | amount float | month int | currency str
    vessel | vessels | name str | port str | crew int | tonnage float
""")


@dataclass(frozen=True)
class Record:
    """A record type: its names, its fields as (name, Python type), and one field of each sort."""

    name: str
    plural: str
    suffix: str
    fields: tuple[tuple[str, str], ...]
    text: str
    number: str
    bound: int

    def fill(self, template: str, **more: object) -> str:
        """The template with the record's names and the further ones in place."""
        return Template(template).substitute(
            {
                "record": self.name,
                "records": self.plural,
                "Type": f"{self.name}_{self.suffix}".title().replace("_", ""),
                "text": self.text,
                "Text": self.text.capitalize(),
                "number": self.number,
                "bound": self.bound,
                "names": ", ".join(field for field, _ in self.fields),
            }
            | more
        )


def _record(dice: Dice) -> Record:
    name, plural, *described = dice.pick(_RECORDS)
    fields = [(field, kind) for field, kind in (text.split() for text in described)]
    chosen = tuple(dice.sample(fields, dice.integer(3, 4)))
    text = dice.pick([field for field, kind in chosen if kind == "str"])
    number = dice.pick([field for field, kind in chosen if kind != "str"])
    bound = dice.integer(1, 90)
    suffix = dice.pick(("entry", "record", "row", "data", "info", lexicon.coined(dice)))
    return Record(name, plural, suffix, chosen, text, number, bound)


def _value(dice: Dice, kind: str) -> str:
    if kind == "int":
        return str(dice.integer(1, 99))
    if kind == "float":
        return f"{dice.integer(1, 99)}.{dice.integer(0, 9)}"
    return f'"{lexicon.surname(dice)}"'


def _python(dice: Dice) -> str:
    record = _record(dice)
    fields = "\n".join(f"    {field}: {kind}" for field, kind in record.fields)
    literals = []
    for _ in range(dice.integer(2, 4)):
        values = ", ".join(f"{field}={_value(dice, kind)}" for field, kind in record.fields)
        literals.append(record.fill("        $Type($values),", values=values))
    parts = [record.fill(idioms.PYTHON_CLASS, fields=fields)]
    parts += [record.fill(template) for template in dice.sample(idioms.PYTHON, 2)]
    if dice.chance(0.6):
        parts.append(record.fill(idioms.PYTHON_MAIN, rows="\n".join(literals)))
    return "from dataclasses import dataclass\n\n\n" + "\n\n\n".join(parts) + "\n"


def _javascript(dice: Dice) -> str:
    record = _record(dice)
    more = {
        "total": camel(f"total_{record.number}"),
        "load": camel(f"load_{record.plural}"),
        "fields": "".join(f"    this.{field} = {field};\n" for field, _ in record.fields),
    }
    templates = dice.sample(idioms.JAVASCRIPT, dice.integer(2, 4))
    return "\n\n".join(record.fill(template, **more) for template in templates) + "\n"


def _c(dice: Dice) -> str:
    record = _record(dice)
    kinds = {"str": "char {}[32];", "int": "int {};", "float": "double {};"}
    fields = "\n".join("    " + kinds[kind].format(field) for field, kind in record.fields)
    struct = f"struct {record.name}_{record.suffix}"
    templates = [idioms.C_HEAD, *dice.sample(idioms.C, dice.integer(1, 3))]
    return "\n\n".join(record.fill(t, struct=struct, fields=fields) for t in templates) + "\n"


def _sql(dice: Dice) -> str:
    record = _record(dice)
    kinds = {"str": "TEXT NOT NULL", "int": "INTEGER NOT NULL", "float": "NUMERIC(10, 2)"}
    columns = ",\n".join(f"    {field} {kinds[kind]}" for field, kind in record.fields)
    tuples = []
    for _ in range(dice.integer(2, 5)):
        values = [_value(dice, kind).replace('"', "'") for _, kind in record.fields]
        tuples.append(f"    ({', '.join(values)})")
    more = {
        "fields": columns,
        "rows": ",\n".join(tuples),
        "change": dice.integer(1, 9),
        "who": lexicon.surname(dice),
        "upper": record.bound + dice.integer(5, 60),
        "most": dice.integer(2, 50),
    }
    templates = [idioms.SQL_HEAD, *dice.sample(idioms.SQL, dice.integer(1, 4))]
    return "\n\n".join(record.fill(template, **more) for template in templates) + "\n"


_DRAWN = (PYTHON, JAVASCRIPT, C)
_IDIOMATIC: tuple[tuple[str, Callable[[Dice], str]], ...] = (
    ("python", _python),
    ("javascript", _javascript),
    ("c", _c),
    ("sql", _sql),
)


def snippet(dice: Dice) -> tuple[str, str]:
    """A language's name and a piece of source code in it."""
    drawn = dice.integer(0, 6)
    if drawn < 3:
        return _DRAWN[drawn].name, program(dice, _DRAWN[drawn])
    language, maker = _IDIOMATIC[drawn - 3]
    return language, maker(dice)


def source(dice: Dice) -> str:
    """A source file, now and then inside a Markdown fence with a sentence before it."""
    language, code = snippet(dice)
    if dice.chance(0.25):
        intro = dice.say(
            "[The following {l} code is part of|An example in {l} from|From the sources of] {n}:",
            l=language,
            n=lexicon.coined(dice),
        )
        return f"{intro}\n\n```{language}\n{code.rstrip()}\n```"
    return code
