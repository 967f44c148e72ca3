"""Names of the files in a model folder."""

CONFIG = "config.json"
SINGLE = "model.safetensors"
MODELOPT = "hf_quant_config.json"
INDEX = "model.safetensors.index.json"
TEMPLATES = "additional_chat_templates"
SUMS = "SHA256SUMS"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
# A tokenizer needs one of these: without any, transformers builds an empty tokenizer silently.
VOCABULARIES = ("tokenizer.json", "*.model", "vocab.json", "vocab.txt", "*.tiktoken", "tekken.json")
