"""What a notebook sees."""
