"""Exercise: the bytes a rank holds under each ZeRO stage, in mixed precision with Adam."""
