"""Checkpoint formats: QTensors to named tensors and back.

`plan` lays files out by them and never loads torch, so they import it, and the grids, only inside
the functions that touch numbers.
"""
