"""Exercise: the bytes of weights, gradients and optimizer state, in fp32 and in mixed precision."""
