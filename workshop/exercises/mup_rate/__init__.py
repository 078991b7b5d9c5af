"""Exercise: which rate each parameter of a wider model takes under muP."""
