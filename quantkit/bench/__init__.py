"""Speed and memory of the quantized computation, here and in an engine."""
