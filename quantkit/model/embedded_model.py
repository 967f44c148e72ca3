"""Path of the small model that ships with quantkit."""

from pathlib import Path

FOLDER = Path(__file__).parent / "embedded"
HELDOUT = FOLDER / "heldout.jsonl"
