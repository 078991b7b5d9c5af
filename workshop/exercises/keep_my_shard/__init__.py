"""Exercise: the second stage of ZeRO, as the hook of a weight."""
