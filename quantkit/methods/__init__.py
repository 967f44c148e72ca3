"""Quantization methods, one algorithm a file; the file name is the method's name."""
