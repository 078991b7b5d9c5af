"""Exercise: complete a configuration, for any number of nodes."""
