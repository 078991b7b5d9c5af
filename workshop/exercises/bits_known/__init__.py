"""Exercise: how many bits a model knows of a set of facts."""
