"""Exercise: a block of weights in sixteen numbers."""
