"""Verbs, one a file; the file name is the verb."""
