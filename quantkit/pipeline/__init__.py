"""The block loop: one block in memory, quantized as its inputs arrive."""
