"""The nouns that every layer shares; nothing here imports torch."""
