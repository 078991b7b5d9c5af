"""Exercise: the gradients of two matrices that are cut twice."""
