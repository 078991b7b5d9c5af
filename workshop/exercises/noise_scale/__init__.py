"""Exercise: the gradient's noise scale from two batch sizes."""
