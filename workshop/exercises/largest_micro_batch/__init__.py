"""Exercise: how many sequences go through a device at once, state, activations and logits counted."""
