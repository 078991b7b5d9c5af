"""Exercise: SmoothQuant, folded into what makes the inputs."""
