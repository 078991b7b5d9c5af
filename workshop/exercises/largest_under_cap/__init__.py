"""Exercise: the widest model that still trains under a memory cap."""
