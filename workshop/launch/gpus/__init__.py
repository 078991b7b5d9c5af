"""Which GPUs there are, and which launch holds them."""
