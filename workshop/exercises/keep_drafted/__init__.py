"""Exercise: which guessed tokens stay, and what comes behind them."""
