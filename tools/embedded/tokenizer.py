"""The embedded model's tokenizer: byte-level BPE over the training text, digits one by one."""

from itertools import islice

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from tools.embedded.corpus import CONTEXT, plain, training_documents

VOCABULARY = 2048
BOS, EOS, PAD, USER, ASSISTANT = "<|bos|>", "<|eos|>", "<|pad|>", "<|user|>", "<|assistant|>"
# Every turn ends with <|eos|>, so that generation stops where the assistant's turn does.
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    f"{{{{ '{ASSISTANT}' if message['role'] == 'assistant' else '{USER}' }}}}"
    "{{ message['content'] }}{{ eos_token }}{% endfor %}"
    f"{{% if add_generation_prompt %}}{{{{ '{ASSISTANT}' }}}}{{% endif %}}"
)


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
    texts = map(plain, islice(training_documents(), n_documents))
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
