"""Number grids: the codes and scales of a weight, and the rounding that produces them."""
