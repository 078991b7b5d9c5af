"""Exercise: the third stage of ZeRO, as a training step on shards."""
