"""Exercise: dynamic loss scaling, the part that decides."""
