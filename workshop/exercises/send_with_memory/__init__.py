"""Exercise: error feedback, the three lines that make it safe to throw most of a gradient away."""
