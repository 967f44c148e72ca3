"""Metrics, one a file."""
