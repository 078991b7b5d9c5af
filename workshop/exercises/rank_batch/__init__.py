"""Exercise: what a rank reads in a step, told by the step's number alone."""
