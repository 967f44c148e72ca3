"""Running statistics of the inputs of a group of linears."""
