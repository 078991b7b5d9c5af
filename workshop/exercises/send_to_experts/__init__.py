"""Exercise: dispatch: tokens to the ranks that have their experts."""
