"""Exercise: the loss, when each rank has the logits of some words."""
