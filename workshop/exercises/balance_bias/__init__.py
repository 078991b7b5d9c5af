"""Exercise: even out a router without a loss."""
