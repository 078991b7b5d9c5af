"""Exercise: how many GPUs for a deadline, without the four usual ways of being wrong by 4 to 200 per cent."""
