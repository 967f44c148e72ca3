"""Evaluation of an artifact against the model it was made from."""
