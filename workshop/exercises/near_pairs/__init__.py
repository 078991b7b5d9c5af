"""Exercise: texts that are nearly alike, found by a few of their hashes."""
