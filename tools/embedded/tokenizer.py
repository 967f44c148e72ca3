"""The embedded model's tokenizer: byte-level BPE over the training text, digits one by one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from tools.embedded.generators import TRAINING, Document, documents

VOCABULARY = 2048
CONTEXT = 512
BOS, EOS, PAD, USER, ASSISTANT = "<|bos|>", "<|eos|>", "<|pad|>", "<|user|>", "<|assistant|>"
# Every turn ends with <|eos|>, so that generation stops where the assistant's turn does.
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    f"{{{{ '{ASSISTANT}' if message['role'] == 'assistant' else '{USER}' }}}}"
    "{{ message['content'] }}{{ eos_token }}{% endfor %}"
    f"{{% if add_generation_prompt %}}{{{{ '{ASSISTANT}' }}}}{{% endif %}}"
)


def _plain(document: Document) -> str:
    if isinstance(document.content, str):
        return document.content
    return "\n".join(message["content"] for message in document.content)


def train_tokenizer(n_documents: int = 12_000) -> PreTrainedTokenizerFast:
    """A tokenizer of `VOCABULARY` entries learnt from the first training documents."""
    tokenizer = Tokenizer(models.BPE())
    digits = pre_tokenizers.Digits(individual_digits=True)
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[BOS, EOS, PAD, USER, ASSISTANT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    texts = map(_plain, islice(documents(TRAINING), n_documents))
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A",
        pair=f"{BOS} $A $B:1",
        special_tokens=[(BOS, tokenizer.token_to_id(BOS))],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        chat_template=CHAT_TEMPLATE,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )


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
