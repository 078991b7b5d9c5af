"""Exercise: how large a model a budget of FLOPs should train."""
