"""Exercise: model FLOPs utilization from a training log."""
