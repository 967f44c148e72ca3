"""What was measured, and what follows from it: stored results, intervals, gates and baselines."""
