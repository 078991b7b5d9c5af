"""Exercise: the heart of Muon, which makes all singular values nearly 1."""
