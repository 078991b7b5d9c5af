"""Exercise: what QLoRA keeps, on paper."""
