"""The grids: each file is an entry, its name is what recipes call it."""
