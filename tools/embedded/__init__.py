"""How the embedded model came to be: seeded text generators, training, the trigram baseline."""
