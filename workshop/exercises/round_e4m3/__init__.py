"""Exercise: round a number to E4M3, in plain Python."""
