"""Kernels that multiply by packed codes; each file is a family of them and exports KERNELS."""
