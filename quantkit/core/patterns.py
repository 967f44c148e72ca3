"""Regular expressions from files of anybody, which may be many, or backtrack exponentially."""

from __future__ import annotations

from collections.abc import Sequence
from time import thread_time
from typing import Any

from quantkit.core.errors import InputError

MOST = 10_000
LONGEST = 10_000
"""Characters of one expression."""
SECONDS = 2.0
"""CPU time for all names that a list is matched with; 200,000 matches of plain ones take 0.3."""


class Patterns:
    """A list of regular expressions, compiled once; `where` names their file in messages.

    Raises:
        InputError: there are too many, or one is too long or not valid.
    """

    def __init__(self, patterns: Sequence[str], where: str) -> None:
        import regex

        self._where = where
        self._left = SECONDS
        self._found: dict[tuple[str, bool], int | None] = {}
        if len(patterns) > MOST:
            raise InputError(
                f"{where} has {len(patterns):,} patterns", why=f"at most {MOST:,} are tried"
            )
        self._compiled: list[Any] = []
        for pattern in patterns:
            if len(pattern) > LONGEST:
                raise self._unusable(pattern, f"it is longer than {LONGEST:,} characters")
            try:
                self._compiled.append(regex.compile(pattern))
            except (regex.error, RecursionError, OverflowError) as error:
                raise self._unusable(pattern, str(error) or type(error).__name__) from error

    def first(self, name: str, *, whole: bool = False) -> int | None:
        """Which of the expressions matches the beginning of `name`, or the `whole` of it, first.

        Raises:
            InputError: matching takes more than SECONDS, with all other names that were matched.
        """
        if (name, whole) not in self._found:
            began = thread_time()
            try:
                self._found[name, whole] = self._first(name, began + self._left, whole=whole)
            finally:
                self._left -= thread_time() - began
        return self._found[name, whole]

    def _first(self, name: str, end: float, *, whole: bool) -> int | None:
        for index, compiled in enumerate(self._compiled):
            match = compiled.fullmatch if whole else compiled.match
            left = end - thread_time()
            if left <= 0:
                raise self._slow(compiled.pattern)
            try:
                found = match(name, timeout=left)
            except TimeoutError:
                raise self._slow(compiled.pattern) from None
            if found is not None:
                return index
        return None

    def _slow(self, pattern: str) -> InputError:
        return self._unusable(pattern, f"matching takes more than {SECONDS:g} seconds")

    def _unusable(self, pattern: str, why: str) -> InputError:
        return InputError(
            f"`{pattern[:80]}` in {self._where} is not a usable regex",
            why=why,
            hint="fewer and simpler patterns",
        )
