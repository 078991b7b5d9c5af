"""Pictures that serve a single lesson, a module for each day of the workshop."""
