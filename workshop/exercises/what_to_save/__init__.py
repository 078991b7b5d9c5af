"""Exercise: what a checkpoint must hold, so that the run that goes on is the run that was broken off."""
