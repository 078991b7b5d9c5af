"""Exercise: which axes multiply, and which do not."""
