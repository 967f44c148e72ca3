"""Conversations as the text that a model sees: its chat template, applied with care."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

TEMPLATE_BYTES = 64 << 10
# A template may write today's date, and the tokens must not depend on the day of the run.
TODAY = datetime(2025, 1, 1, tzinfo=UTC)


Messages = Sequence[Mapping[str, str]]
Render = Callable[[Messages], str | None]


class Tokenizer(Protocol):
    """What is used of a `transformers` tokenizer."""

    eos_token_id: int | None
    chat_template: Any

    def __call__(self, text: str, *, add_special_tokens: bool) -> Mapping[str, list[int]]:
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
    if not template:
        return None
    sources = template.values() if isinstance(template, Mapping) else (template,)
    fits = sum(len(str(source).encode()) for source in sources) <= TEMPLATE_BYTES

    def render(messages: Messages) -> str | None:
        return _render(tokenizer, messages) if fits else None

    return render


def _render(tokenizer: Tokenizer, messages: Messages) -> str | None:
    try:
        text = tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            tokenize=False,
            add_generation_prompt=False,
            strftime_now=TODAY.strftime,
        )
    except Exception:  # noqa: BLE001 - a template can raise anything; the caller counts it
        return None
    content = sum(len(message["content"]) for message in messages)
    # A template repeats little and adds a preamble: more than this is a fault or an attack.
    return text if isinstance(text, str) and len(text) <= TEMPLATE_BYTES + 8 * content else None
