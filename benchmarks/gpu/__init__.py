"""The stages of `make gpu` (`benchmarks/gpu_day.py`), one a file; each writes what it measures at once."""
