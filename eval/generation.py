"""Greedy text from a model folder, quantized or not."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from quantkit.calibration.chat import apply, template_of
from quantkit.calibration.tokens import hostile_tokenizer, load_tokenizer
from quantkit.checkpoint.files import read_json
from quantkit.core.errors import InputError
from quantkit.core.session import Session
from quantkit.model.open import open_model
from quantkit.model.opened import check_ids, context_length, load_dense

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def generate_text(
    folder: Path,
    prompt: str,
    session: Session = Session(),
    *,
    max_new_tokens: int = 64,
    chat: bool = False,
    emit: Callable[[str], None] | None = None,
) -> str:
    """The model's likeliest continuation of `prompt`, computed with the decoded weights.

    With `chat` the prompt is a user's turn in the model's chat template. `emit` receives each piece
    of text once later tokens cannot change it. Generation ends with the context at the latest.

    Raises:
        InputError: the prompt is empty or longer than the context, or with `chat` the chat template
            is missing or fails.
    """
    tokenizer = load_tokenizer(folder, session)
    ids = _prompt_ids(tokenizer, prompt, chat=chat)
    opened = open_model(folder, session)
    check_ids(opened, ids)
    room = context_length(opened) - ids.shape[1]
    if room < 1:
        raise InputError(
            f"the prompt has {ids.shape[1]:,} tokens",
            why=f"the model's context is {context_length(opened):,}",
            hint="a shorter prompt",
        )
    model = load_dense(opened)
    produced: list[int] = []
    text = ""
    for token in _greedy(
        model, ids.to(opened.device), min(max_new_tokens, room), _stop_ids(folder, tokenizer)
    ):
        produced.append(token)
        whole = tokenizer.decode(produced, skip_special_tokens=True)
        if whole.endswith("\ufffd"):
            continue  # a character of several tokens is not complete
        _tell(emit, whole[len(text) :])
        text = whole
    whole = tokenizer.decode(produced, skip_special_tokens=True)
    _tell(emit, whole[len(text) :])
    return whole


def _prompt_ids(tokenizer: Any, prompt: str, *, chat: bool) -> torch.Tensor:
    text = _as_turn(tokenizer, prompt) if chat else prompt
    # A template writes its special tokens itself; a second BOS would follow otherwise.
    with hostile_tokenizer("the prompt"):
        ids = tokenizer(text, add_special_tokens=not chat)["input_ids"]
    if not ids:
        raise InputError("the prompt contains no tokens", hint='"Once upon a time"')
    return torch.tensor([ids])


def _as_turn(tokenizer: Any, prompt: str) -> str:
    """The prompt as a user's turn, and the opening of the answer."""
    turns = [{"role": "user", "content": prompt}]
    hint = "the same prompt without --chat"
    if not template_of(tokenizer):
        raise InputError("the tokenizer contains no chat template", hint=hint)
    try:
        return apply(tokenizer, turns, generation_prompt=True)
    except (RuntimeError, TimeoutError) as error:
        why = str(error).partition("\n")[0]
        raise InputError("the chat template fails on this prompt", why=why, hint=hint) from error


def _greedy(
    model: "PreTrainedModel", ids: torch.Tensor, count: int, stops: frozenset[int]
) -> Iterator[int]:
    """At most `count` greedy tokens after `ids` (1, length) int64, without the stop token."""
    cache = None
    for _ in range(count):
        with torch.inference_mode():
            out = model(input_ids=ids, past_key_values=cache, use_cache=True)
        token = int(out.logits[0, -1].argmax())
        if token in stops:
            return
        yield token
        cache, ids = out.past_key_values, torch.tensor([[token]], device=ids.device)


def _stop_ids(folder: Path, tokenizer: Any) -> frozenset[int]:
    """End tokens of the tokenizer and of generation_config.json, which may name several."""
    path = folder / "generation_config.json"
    stated = read_json(path) if path.is_file() else {}
    named = stated.get("eos_token_id") if isinstance(stated, dict) else None
    several = named if isinstance(named, list) else [named]
    return frozenset(i for i in (*several, tokenizer.eos_token_id) if isinstance(i, int))


def _tell(emit: Callable[[str], None] | None, piece: str) -> None:
    if emit is not None and piece:
        emit(piece)
