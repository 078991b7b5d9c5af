"""Seconds of a training step: `step` answers for one run, `search` for a million layouts."""
