"""Exercise: the step of ring attention: hand the keys on, attend, merge."""
