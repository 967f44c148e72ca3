"""Whole jobs: quantize and evaluate, fit bits to a budget, sweep recipes."""
