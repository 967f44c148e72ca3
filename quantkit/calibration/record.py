"""Converts the records of datasets to documents.

A record has `messages` (role, content), `conversations` (from, value), `prompt` and `completion`,
`text` or `page`. An optional `domain` (or `kind`) names the sort of text. Other fields are ignored.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from quantkit.core.errors import InputError

FIELDS = ("messages", "conversations", "prompt", "completion", "text", "page")
DOMAINS = ("domain", "kind")
ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant", "chatgpt": "assistant"}


@dataclass(frozen=True)
class Document:
    """One text, or one conversation as messages of `role` and `content`; never both.

    `source` names file and line (or row) for error messages; `domain` is empty if the record does
    not state it.
    """

    text: str | None
    messages: tuple[dict[str, str], ...] | None
    source: str
    domain: str = ""

    def is_told(self) -> bool:
        """Whether there is more in it than blanks."""
        told = [self.text or "", *(m["content"] for m in self.messages or ())]
        return any(text and not text.isspace() for text in told)

    def size(self) -> int:
        """Characters of the content."""
        return len(self.text or "") + sum(len(m["content"]) for m in self.messages or ())


def record_document(record: Any, where: str) -> Document:
    """The document in one record of a dataset; empty or null content gives an empty document.

    Raises:
        InputError: the record has no field of FIELDS, or one has the wrong type; names `where`.
    """
    if not isinstance(record, Mapping):
        raise InputError(
            f"{where} is not a record with fields", hint='{"text": "..."} on each line'
        )
    domain = next((record[key] for key in DOMAINS if isinstance(record.get(key), str)), "")
    return replace(_document(record, where), domain=domain[:80])


def _document(record: Mapping[str, Any], where: str) -> Document:
    if "messages" in record:
        return Document(None, _messages(record["messages"], "role", "content", where), where)
    if "conversations" in record:
        return Document(None, _messages(record["conversations"], "from", "value", where), where)
    if "prompt" in record and "completion" in record:
        turns = (("user", record["prompt"]), ("assistant", record["completion"]))
        pair = tuple({"role": role, "content": _string(value, where)} for role, value in turns)
        return Document(None, pair, where)
    for field in ("text", "page"):
        if field in record:
            return Document(_string(record[field], where), None, where)
    raise InputError(
        f"{where} has no text",
        why=f"fields found: {', '.join(map(repr, list(record)[:8])) or 'none'}",
        hint="use a field `text`, `messages` or `conversations`, or `prompt` and `completion`",
    )


def _messages(turns: Any, role: str, content: str, where: str) -> tuple[dict[str, str], ...]:
    if turns is None:
        return ()
    if not isinstance(turns, list):
        raise InputError(f"{where}: a conversation must be a list of turns")
    result = []
    for turn in turns:
        if not isinstance(turn, Mapping):
            raise InputError(f"{where}: a turn must be a record with `{role}` and `{content}`")
        # Datasets mix the two spellings: `conversations` may hold `role` and `content`.
        name = turn.get(role, turn.get("role"))
        if not isinstance(name, str):
            raise InputError(f"{where}: a turn has no `{role}`")
        value = turn.get(content, turn.get("content"))
        result.append({"role": ROLES.get(name, name), "content": _string(value, where)})
    return tuple(result)


def _string(value: Any, where: str) -> str:
    """`value` as text: null is empty; a list of content parts gives its texts, without images."""
    if value is None:
        return ""
    if isinstance(value, list) and all(isinstance(part, Mapping) for part in value):
        return "".join(_string(part.get("text"), where) for part in value)
    if not isinstance(value, str):
        raise InputError(f"{where}: expected text, not {type(value).__name__}")
    return value
