"""Exercise: the order of a rank under 1F1B."""
