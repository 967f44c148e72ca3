"""Endless seeded text of nine kinds: what the embedded model learns and what calibrates offline.

The text has structure that the two words before do not tell: names and figures that recur far
away, sums that are right, brackets that close, columns that agree.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count

from tools.embedded import (
    dialogue,
    exposition,
    instructions,
    languages,
    mathematics,
    narrative,
    records,
    source_code,
)
from tools.embedded.dice import Dice

# Streams that must not meet: no document of one is in another.
TRAINING, HELD_OUT, CALIBRATION = 1, 2, 3

Message = dict[str, str]
Content = str | list[Message]


@dataclass(frozen=True)
class Document:
    """One text, or one conversation as ``{"role", "content"}`` messages."""

    kind: str
    content: Content


KINDS: dict[str, Callable[[Dice], Content]] = {
    "narrative": narrative.story,
    "exposition": exposition.essay,
    "dialogue": dialogue.conversation,
    "code": source_code.source,
    "mathematics": mathematics.worksheet,
    "table": records.table,
    "json": records.record,
    "instructions": instructions.guide,
    "notes": languages.note,
}


def document(seed: int, index: int, kind: str | None = None) -> Document:
    """The document at `index` of the stream `seed`; without `kind`, of a drawn kind."""
    dice = Dice(f"quantkit text {seed} {kind or 'any'} {index}")
    chosen = kind or dice.pick(tuple(KINDS))
    return Document(chosen, KINDS[chosen](dice))


def documents(seed: int, kind: str | None = None) -> Iterator[Document]:
    """All documents of a stream, without end, the same on every machine and Python version."""
    return (document(seed, index, kind) for index in count())
