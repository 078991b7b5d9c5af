"""What we talk about."""
