"""Exercise: every rank takes part in a collective, one rank prints."""
