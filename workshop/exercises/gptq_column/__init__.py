"""Exercise: one column of GPTQ."""
