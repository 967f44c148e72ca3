"""The public functions, one per command."""
