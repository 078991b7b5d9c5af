"""Exercise: FLOPs, devices, their peak and the share of it that is reached make days."""
