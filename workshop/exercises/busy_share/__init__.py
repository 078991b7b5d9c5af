"""Exercise: the share of a window in which a device did anything, from the spans of a trace."""
