"""The Python process that the code runs in: what its libraries say while they load, what its tensors hold.

Ranks and notebooks use it alike. Nothing here imports torch; it works on the one that the process has loaded.
"""
