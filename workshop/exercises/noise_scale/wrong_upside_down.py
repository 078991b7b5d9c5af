def noise_scale(small, small_square, big, big_square):
    """S / |G|^2 from mean squared norms of gradients of two batch sizes."""
    noise = (small_square - big_square) / (1 / small - 1 / big)
    true_square = big_square - noise / big
    return true_square / noise
