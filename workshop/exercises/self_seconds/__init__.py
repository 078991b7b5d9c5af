"""Exercise: self time, from the events of one thread."""
