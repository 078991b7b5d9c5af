"""Exercise: what one layer keeps for backward, after Korthikanti et al."""
