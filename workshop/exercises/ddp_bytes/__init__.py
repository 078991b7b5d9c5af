"""Exercise: the bytes a rank must hold to train P parameters under DistributedDataParallel with AdamW."""
