"""Exercise: the backward half of activation checkpointing."""
