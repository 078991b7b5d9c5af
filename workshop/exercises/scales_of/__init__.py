"""Exercise: one scale for a matrix, a row or a column."""
