"""Exercise: the backward of a block whose two matrices are cut over ranks."""
