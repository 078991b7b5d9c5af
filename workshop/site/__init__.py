"""Where we are: the site's file, its networks, and what its scheduler and container want to be told."""
