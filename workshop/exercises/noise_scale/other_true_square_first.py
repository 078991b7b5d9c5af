def noise_scale(small, small_square, big, big_square):
    """S / |G|^2 from mean squared norms of gradients of two batch sizes."""
    true_square = (big * big_square - small * small_square) / (big - small)
    return small * (small_square - true_square) / true_square
