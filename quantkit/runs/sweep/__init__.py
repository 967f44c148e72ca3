"""Many recipes on one model, with a journal from which an interrupted sweep resumes."""
