"""Exercise: make it fit under the cap with the least traffic."""
