"""Exercise: how likely a model holds an answer to be: a sum over the answer's tokens."""
