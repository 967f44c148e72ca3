"""The model's skeleton, its structure by tracing, and the running of its blocks."""
