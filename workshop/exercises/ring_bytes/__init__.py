"""Exercise: the bytes a rank sends in a ring all-reduce."""
