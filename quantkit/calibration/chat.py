"""Renders conversations with a model's chat template, in a sandbox with limits."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

from quantkit.calibration.bounded import bounded

TEMPLATE_BYTES = 64 << 10
# Some templates print today's date with `strftime_now`; tokens must not depend on the day of the
# run. transformers passes only plain data to a template, so a macro replaces the function. The
# empty expression after it keeps a line break at the start of the template.
NEW_YEAR = datetime(2025, 1, 1, tzinfo=UTC)
FIXED_DATE = (
    "{% macro strftime_now(format) %}{{ format"
    + "".join(f"|replace('%{c}', '{NEW_YEAR.strftime(f'%{c}')}')" for c in "dmyYbBaAHMSjpI")
    + " }}{% endmacro %}{{ '' }}"
)


Messages = Sequence[Mapping[str, str]]
Render = Callable[[Messages], str | None]


class Tokenizer(Protocol):
    """The part of a `transformers` tokenizer that quantkit uses."""

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
    """One `role: content` line per message, for models without a chat template."""
    return "\n".join(f"{message['role']}: {message['content']}" for message in messages) + "\n"


def renderer(tokenizer: Tokenizer) -> Render | None:
    """A function that renders conversations with the tokenizer's chat template.

    It keeps all turns and adds no generation prompt. It returns None for a conversation on which
    the template fails, and for all conversations after the template has exceeded its limits once.
    The result is None if there is no template.
    """
    if not template_of(tokenizer):
        return None
    exhausted = False

    def render(messages: Messages) -> str | None:
        nonlocal exhausted
        if exhausted:
            return None
        try:
            return apply(tokenizer, messages)
        except TimeoutError:
            exhausted = True
        except RuntimeError:
            pass  # the caller counts failures and falls back to `plain`
        return None

    return render


def template_of(tokenizer: Tokenizer) -> str | None:
    """The tokenizer's chat template, or the one named `default` if there are several."""
    template = tokenizer.chat_template
    if isinstance(template, Mapping):
        template = template.get("default")
    return template if isinstance(template, str) and template else None


def apply(tokenizer: Tokenizer, messages: Messages, *, generation_prompt: bool = False) -> str:
    """The conversation as text, rendered with the tokenizer's chat template, which must exist.

    Templates run in the sandbox of transformers, in a child process with limits.

    Raises:
        RuntimeError: the template fails, is longer than TEMPLATE_BYTES, or returns far more text
            than the conversation holds.
        TimeoutError: it exceeds the time or memory limit.
    """
    template = template_of(tokenizer) or ""
    if len(template) > TEMPLATE_BYTES:
        raise RuntimeError(f"it is longer than {TEMPLATE_BYTES:,} characters")
    if "strftime_now" in template:
        template = FIXED_DATE + template
    turns = [dict(message) for message in messages]

    def make() -> str:
        text = tokenizer.apply_chat_template(
            turns,
            chat_template=template,
            tokenize=False,
            add_generation_prompt=generation_prompt,
        )
        if not isinstance(text, str):
            raise TypeError("it returns no text")
        return text

    # A template adds a preamble and repeats little: much more text is a bug or an attack.
    content = sum(len(message["content"]) for message in messages)
    return bounded(make, TEMPLATE_BYTES + 8 * content)
