"""Exercise: days of a run in stages, from FLOPs, devices and the share of their peak."""
