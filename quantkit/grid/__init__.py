"""Number grids: codes, scales and how a weight becomes them."""
