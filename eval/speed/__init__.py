"""How fast the quantized computation is: here with torch's kernels, and inside an engine."""
