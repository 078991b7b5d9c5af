"""Exercise: which tokens of a conversation are learned."""
