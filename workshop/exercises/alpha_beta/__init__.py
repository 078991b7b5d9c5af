"""Exercise: fit t = alpha + n / beta to measured message times."""
