"""Ways to train one model on many ranks: each by hand first, to be read in a sitting, then the library's."""
