"""Published measurements against our predictions, row by row."""
