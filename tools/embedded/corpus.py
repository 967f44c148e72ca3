"""What the embedded model reads: generated documents with the calibration text among them."""

import json
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from tools.embedded.generators import TRAINING, Document, documents

CONTEXT = 512
ROOT = Path(__file__).resolve().parents[2]
WRITTEN = ROOT / "quantkit" / "calibration" / "text" / "default.jsonl"
GENERATED_BETWEEN = 4


def read_documents(path: Path) -> list[Document]:
    """The documents of a JSON-lines file with "text" or "messages" in each record."""
    records = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [Document(r["kind"], r["text"] if "text" in r else r["messages"]) for r in records]


def training_documents() -> Iterator[Document]:
    """The endless training text: four generated documents, one of the calibration text, and so on.

    The calibration text holds prose that a grammar cannot make; it comes round about three times
    in a training run. Generated documents never repeat.
    """
    generated = documents(TRAINING)
    for written in cycle(read_documents(WRITTEN)):
        yield from islice(generated, GENERATED_BETWEEN)
        yield written


def plain(document: Document) -> str:
    """The document's words without roles."""
    if isinstance(document.content, str):
        return document.content
    return "\n".join(message["content"] for message in document.content)


def encode(tokenizer: PreTrainedTokenizerFast, document: Document) -> list[int]:
    """The document's token ids from <|bos|> to <|eos|>, conversations through the template."""
    if isinstance(document.content, str):
        return [*tokenizer.encode(document.content, verbose=False), tokenizer.eos_token_id]
    text = tokenizer.apply_chat_template(document.content, tokenize=False)
    return list(tokenizer.encode(text, add_special_tokens=False, verbose=False))


def windows(
    tokenizer: PreTrainedTokenizerFast, texts: Iterator[Document], length: int = CONTEXT
) -> Iterator[list[int]]:
    """Windows of `length` tokens, cut from the documents end to end, each begun with <|bos|>.

    The tokens after the last whole window are dropped.
    """
    buffer: list[int] = []
    for document in texts:
        buffer += encode(tokenizer, document)
        while len(buffer) >= length:
            yield [tokenizer.bos_token_id, *buffer[1:length]]
            buffer = buffer[length:]
