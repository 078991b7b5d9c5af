"""Exercise: which ranks are together on an axis of a box."""
