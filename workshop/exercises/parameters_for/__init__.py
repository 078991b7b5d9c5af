"""Exercise: how many parameters it takes to know a set of people."""
