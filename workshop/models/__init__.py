"""Models small enough to read and real enough to train."""
