import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from quantkit.calibration.tokens import load_tokenizer
from quantkit.core.errors import InputError
from quantkit.eval.generation import generate_text

PROMPT = "The ferry"
TEMPLATE = (
    "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


@torch.no_grad()
def generated(folder: Path, prompt: str, count: int) -> list[int]:
    """What transformers itself generates greedily, prompt left out."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = AutoTokenizer.from_pretrained(folder)(prompt, return_tensors="pt")["input_ids"]
    out = model.generate(ids, max_new_tokens=count, do_sample=False, pad_token_id=1)
    return [int(i) for i in out[0, ids.shape[1] :]]


def decode(folder: Path, ids: list[int]) -> str:
    from transformers import AutoTokenizer

    return str(AutoTokenizer.from_pretrained(folder).decode(ids, skip_special_tokens=True))


def change(folder: Path, name: str, **values: Any) -> None:
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_is_the_greedy_text_of_transformers(
    tiny_checkpoint: Callable[..., Path], family: str
) -> None:
    folder = tiny_checkpoint(family)
    pieces: list[str] = []
    text = generate_text(folder, PROMPT, max_new_tokens=24, emit=pieces.append)
    assert text == decode(folder, generated(folder, PROMPT, 24))
    assert "".join(pieces) == text
    assert len(text) > 2


def test_pieces_never_hold_half_a_character(
    tiny_checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from quantkit.eval import generation

    folder = tiny_checkpoint()
    ids = load_tokenizer(folder)("aß→日!", add_special_tokens=False)["input_ids"]
    monkeypatch.setattr(generation, "_greedy", lambda *_: iter(ids))
    pieces: list[str] = []
    assert generate_text(folder, PROMPT, emit=pieces.append) == "aß→日!"
    assert pieces == ["a", "ß", "→", "日", "!"]


def test_stops_where_the_generation_config_says(tiny_checkpoint: Callable[..., Path]) -> None:
    folder = tiny_checkpoint(private=True)
    ids = generated(folder, PROMPT, 12)
    stop = ids[4]
    change(folder, "generation_config.json", eos_token_id=[1, stop])
    text = generate_text(folder, PROMPT, max_new_tokens=12)
    assert text == decode(folder, ids[: ids.index(stop)])


def test_a_chat_is_what_the_template_makes_of_it(tiny_checkpoint: Callable[..., Path]) -> None:
    folder = tiny_checkpoint(private=True)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    text = generate_text(folder, PROMPT, max_new_tokens=8, chat=True)
    assert text == decode(folder, generated(folder, f"<s>user: {PROMPT}\nassistant:", 8))
    assert text != generate_text(folder, PROMPT, max_new_tokens=8)


@pytest.mark.parametrize(
    ("template", "says"),
    [
        (None, "no chat template"),
        ("{{ raise_exception('no users') }}", "template fails"),
        ("{% for i in range(100000) %}{{ 'x' * 100000 }}{% endfor %}", "template fails"),
    ],
)
def test_chats_that_cannot_be(
    tiny_checkpoint: Callable[..., Path], template: str | None, says: str
) -> None:
    folder = tiny_checkpoint(private=True)
    if template:
        (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(InputError, match=says) as caught:
        generate_text(folder, PROMPT, chat=True)
    assert caught.value.hint


def test_an_empty_prompt_is_refused(tiny_checkpoint: Callable[..., Path]) -> None:
    with pytest.raises(InputError, match="no tokens"):
        generate_text(tiny_checkpoint(), "")


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_the_text_ends_with_the_context(tiny_checkpoint: Callable[..., Path], family: str) -> None:
    folder = tiny_checkpoint(family, max_position_embeddings=16)
    ids = load_tokenizer(folder)(PROMPT)["input_ids"]
    text = generate_text(folder, PROMPT, max_new_tokens=99)
    assert text == decode(folder, generated(folder, PROMPT, 16 - len(ids)))
    with pytest.raises(InputError, match="context is 16"):
        generate_text(folder, PROMPT * 2)


def test_a_token_without_an_embedding_is_named(tiny_checkpoint: Callable[..., Path]) -> None:
    folder = tiny_checkpoint(vocab_size=200)
    with pytest.raises(InputError, match=r"produces token id 2\d\d"):
        generate_text(folder, "日")
