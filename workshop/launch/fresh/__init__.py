"""Fresh ranks: each cell is a program of its own, run as torchrun would run it."""
