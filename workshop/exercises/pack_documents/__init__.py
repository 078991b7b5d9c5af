"""Exercise: documents of different lengths into few rows of one length."""
