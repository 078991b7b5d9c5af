"""Exercise: which operations on a tensor copy its numbers, and which only look at them in another way."""
