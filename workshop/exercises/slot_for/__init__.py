"""Exercise: where a token is written, in a cache of blocks that sequences may share."""
