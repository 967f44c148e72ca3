"""Checkpoint formats: QTensors to named tensors and back, and the config block of each format.

`plan` computes file layouts with them and must not load torch. They import torch and the grids only
inside the functions that handle tensors.

Shapes in this package: O = out_features, K = in_features, G = groups along K (1 if per channel).
"""
