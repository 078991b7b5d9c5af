"""Exercise: one step of the loop, with a scaled loss."""
