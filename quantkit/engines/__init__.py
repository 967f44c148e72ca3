"""What each inference engine loads: rules, none of the engines' code."""
