"""What the files of a model folder are called."""

CONFIG = "config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
TEMPLATES = "additional_chat_templates"
SUMS = "SHA256SUMS"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
# Any of these is a vocabulary; without one, transformers builds an empty tokenizer in silence.
VOCABULARIES = ("tokenizer.json", "*.model", "vocab.json", "vocab.txt", "*.tiktoken", "tekken.json")
