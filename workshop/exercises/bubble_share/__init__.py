"""Exercise: the share of a pipeline's time in which a rank waits."""
