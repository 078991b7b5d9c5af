"""Exercise: how often to save, so that saving and doing again together cost least (Young, 1974)."""
