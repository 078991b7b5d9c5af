"""Exercise: what a rank sends so that its queries see all keys, by a ring and by Ulysses."""
