"""Exercise: the gradient of a shard, when all ranks computed with the gathered whole."""
