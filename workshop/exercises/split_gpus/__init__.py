"""Exercise: how many GPUs answer, and how many train."""
