"""Exercise: how much better an answer is than the others to the same question."""
