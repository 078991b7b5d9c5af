"""Exercise: a block in parts that are only added up at its end."""
