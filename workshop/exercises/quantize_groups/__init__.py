"""Exercise: codes and scales of a matrix, group by group."""
