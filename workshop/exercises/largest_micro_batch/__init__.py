"""Exercise: how many sequences go through a device at once, state and activations counted."""
