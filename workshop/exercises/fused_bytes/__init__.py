"""Exercise: the bytes that one kernel for several operators moves."""
