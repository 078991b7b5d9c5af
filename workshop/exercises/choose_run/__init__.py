"""Exercise: which of several launches fits, meets the deadline and costs least; see ``exercise.toml``."""
