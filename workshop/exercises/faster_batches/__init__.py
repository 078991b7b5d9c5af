"""Exercise: the same batches, without the work that is done anew for each."""
