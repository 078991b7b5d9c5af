"""Exercise: ZeRO's first stage."""
