"""The data types that every layer shares; nothing here imports torch."""
