"""Exercise: which linear layers of a model may run in FP8."""
