"""Exercise: cut a model in two stages where the slower one is as fast as it can be."""
