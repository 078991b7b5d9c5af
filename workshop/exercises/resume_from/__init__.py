"""Exercise: where a run continues, from what a killed one has left on the disk; see ``exercise.toml``."""
