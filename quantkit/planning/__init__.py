"""Memory, time and bits, forecast from `config.json` and safetensors headers; no torch."""
