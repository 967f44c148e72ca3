"""How the shipped calibration text and the smoke evaluation text are put together."""
