"""Exercise: the loss of pairs of which one answer was preferred (DPO)."""
