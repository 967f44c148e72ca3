"""Stored results, intervals, gates and baselines."""
