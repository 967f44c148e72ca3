"""Memory, time and bits, planned from `config.json` and safetensors headers; no torch."""
