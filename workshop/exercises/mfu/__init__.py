"""Exercise: model FLOPs utilization from the number that every training log has, tokens per second."""
