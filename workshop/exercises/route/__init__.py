"""Exercise: a router: the best experts of each token, and their weights."""
