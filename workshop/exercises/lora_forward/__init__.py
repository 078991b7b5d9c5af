"""Exercise: a linear map with a low-rank change beside it."""
