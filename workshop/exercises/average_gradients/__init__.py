"""Exercise: the one line of data parallelism that makes N copies one model."""
