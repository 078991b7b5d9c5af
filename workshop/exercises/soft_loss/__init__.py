"""Exercise: the loss of a student that learns from a teacher's probabilities."""
