"""Exercise: a micro-batch's share in the mean over all answers of all ranks."""
