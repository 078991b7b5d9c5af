"""Exercise: start to average each gradient while backward still computes the next."""
