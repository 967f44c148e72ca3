"""Conversations as the text that a model sees: its chat template, applied with care."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

from quantkit.calibration.bounded import bounded

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
    no template. A template that needs more than its bounds once is not tried again.
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
            pass  # the caller counts it
        return None

    return render


def template_of(tokenizer: Tokenizer) -> str | None:
    """The tokenizer's chat template, the one called `default` where there are several."""
    template = tokenizer.chat_template
    if isinstance(template, Mapping):
        template = template.get("default")
    return template if isinstance(template, str) and template else None


def apply(tokenizer: Tokenizer, messages: Messages, *, generation_prompt: bool = False) -> str:
    """The conversation in the tokenizer's template, which there must be.

    Templates run in the sandbox of transformers, in a child of bounded time and memory.

    Raises:
        RuntimeError: the template fails, is over TEMPLATE_BYTES, or writes far more than it was
            given. TimeoutError: it takes too much time or memory.
    """
    template = template_of(tokenizer) or ""
    if len(template) > TEMPLATE_BYTES:
        raise RuntimeError(f"it has more than {TEMPLATE_BYTES:,} characters")
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
            raise TypeError("it makes no text")
        return text

    # A template repeats little and adds a preamble: more is a fault or an attack.
    content = sum(len(message["content"]) for message in messages)
    return bounded(make, TEMPLATE_BYTES + 8 * content)
