"""Conversations as the text that a model sees: its chat template, applied with care."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

TEMPLATE_BYTES = 64 << 10
# Some templates write today's date with `strftime_now`; tokens must not depend on the day of the
# run. transformers passes only plain data to a template, so a macro takes the function's place; the
# empty expression after it keeps a line break at the template's beginning.
NEW_YEAR = datetime(2025, 1, 1, tzinfo=UTC)
FIXED_DATE = (
    "{% macro strftime_now(format) %}{{ format"
    + "".join(f"|replace('%{c}', '{NEW_YEAR.strftime(f'%{c}')}')" for c in "dmyYbBaAHMSjpI")
    + " }}{% endmacro %}{{ '' }}"
)


Messages = Sequence[Mapping[str, str]]
Render = Callable[[Messages], str | None]


class Tokenizer(Protocol):
    """What is used of a `transformers` tokenizer."""

    eos_token_id: int | None
    chat_template: Any

    def __call__(
        self, text: str, *, add_special_tokens: bool = True, verbose: bool = True
    ) -> Mapping[str, list[int]]:
        """`input_ids` of `text`."""

    def apply_chat_template(self, conversation: list[dict[str, str]], **options: Any) -> Any:
        """The conversation as text (with `tokenize=False`)."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Text of `token_ids`."""


def plain(messages: Messages) -> str:
    """One `role: content` after the other: for models without a chat template."""
    return "\n".join(f"{message['role']}: {message['content']}" for message in messages) + "\n"


def renderer(tokenizer: Tokenizer) -> Render | None:
    """Renders conversations with the tokenizer's template, None where the template fails.

    All turns are kept and no generation prompt is added. The renderer itself is None where there is
    no template. One over TEMPLATE_BYTES is not tried. Templates run in the sandbox of transformers.
    """
    template = tokenizer.chat_template
    if isinstance(template, Mapping):
        template = template.get("default")
    if not template:
        return None
    if len(template.encode()) > TEMPLATE_BYTES:
        return lambda _: None
    if "strftime_now" in template:
        template = FIXED_DATE + template

    def render(messages: Messages) -> str | None:
        turns = [dict(message) for message in messages]
        try:
            text = tokenizer.apply_chat_template(turns, chat_template=template, tokenize=False)
        except Exception:  # noqa: BLE001 - a template can raise anything; the caller counts it
            return None
        # A template repeats little and adds a preamble: more is a fault or an attack.
        content = sum(len(message["content"]) for message in messages)
        return text if isinstance(text, str) and len(text) <= TEMPLATE_BYTES + 8 * content else None

    return render
