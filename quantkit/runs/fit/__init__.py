"""Bits chosen so that the weights fit a budget."""
