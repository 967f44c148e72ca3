"""Chance that gives the same text on every machine: one seeded stream and the ways to spend it."""

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Dice:
    """Draws from a seeded stream.

    Only ``random.Random.random`` is used: it is the one method whose sequence Python promises to
    keep between versions. A string seed is hashed with SHA-512 there, not with ``hash``.
    """

    def __init__(self, seed: str) -> None:
        self._draw = random.Random(seed).random  # noqa: S311 (text, no secrets)

    def integer(self, low: int, high: int) -> int:
        """An integer from low to high, both included."""
        return low + int(self._draw() * (high - low + 1))

    def chance(self, probability: float) -> bool:
        """True with the given probability."""
        return self._draw() < probability

    def pick(self, items: Sequence[T]) -> T:
        """One of the items."""
        return items[int(self._draw() * len(items))]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """All items in a new order."""
        rest = list(items)
        return [rest.pop(int(self._draw() * len(rest))) for _ in items]

    def sample(self, items: Sequence[T], count: int) -> list[T]:
        """`count` different items, or all of them where there are fewer."""
        return self.shuffled(items)[:count]

    def say(self, template: str, **slots: object) -> str:
        """The template with each ``[a|b|c]`` chosen (they may nest) and each ``{slot}`` filled."""
        while (end := template.find("]")) >= 0:
            start = template.rindex("[", 0, end)
            chosen = self.pick(template[start + 1 : end].split("|"))
            template = template[:start] + chosen + template[end + 1 :]
        return template.format(**slots)


def capital(text: str) -> str:
    """The text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def article(noun: str) -> str:
    """The noun phrase with "a" or "an" before it."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def listing(items: Sequence[str], last: str = "and") -> str:
    """The items as an English enumeration: "a", "a and b", "a, b and c"."""
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} {last} {items[-1]}"
