"""Exercise: the least time of an operator, by the roofline."""
