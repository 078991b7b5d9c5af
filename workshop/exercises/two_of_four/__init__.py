"""Exercise: the mask of 2:4 sparsity, which a GPU's sparse tensor cores can use."""
