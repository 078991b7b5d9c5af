"""Exercise: find the wrong wrap."""
