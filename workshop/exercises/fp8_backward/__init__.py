"""Exercise: the backward of a linear layer in FP8."""
