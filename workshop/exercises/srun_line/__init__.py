"""Exercise: the one line of a batch script that starts all ranks on all nodes."""
