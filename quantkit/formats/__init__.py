"""Checkpoint formats as inverse pairs of encode and decode; the file name is the format's name."""
