"""Exercise: the other half of data parallelism, which is easy to forget: ranks must begin as one model."""
