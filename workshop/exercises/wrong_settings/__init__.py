"""Exercise: find what is wrong with six configuration files, before a cluster does."""
