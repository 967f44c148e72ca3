"""Many recipes on one model, in a journal from which a killed sweep goes on."""
