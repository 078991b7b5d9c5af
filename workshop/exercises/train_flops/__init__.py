"""Exercise: the FLOPs of training a dense transformer, weights and attention."""
