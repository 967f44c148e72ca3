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
ADAPTER = "adapter_config.json"
MAX_INDEX = 64 * 2**20
"""Bytes of an index; that of the 400,000 tensors of 1,000 B weights in NF4 has about 50 MB."""
EDITED = ("README.md", "eval.json", "report.html")
"""Files of a folder that people and later runs may write again."""
