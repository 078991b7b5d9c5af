# %% other: true_square_first
def noise_scale(small, small_square, big, big_square):
    """S / |G|^2 from mean squared norms of gradients of two batch sizes."""
    true_square = (big * big_square - small * small_square) / (big - small)
    return small * (small_square - true_square) / true_square


# %% wrong: big_is_true
# message: S / big: subtract
def noise_scale(small, small_square, big, big_square):
    """S / |G|^2 from mean squared norms of gradients of two batch sizes."""
    noise = (small_square - big_square) / (1 / small - 1 / big)
    true_square = big_square
    return noise / true_square


# %% wrong: small_is_true
# message: S / small: subtract
def noise_scale(small, small_square, big, big_square):
    """S / |G|^2 from mean squared norms of gradients of two batch sizes."""
    noise = (small_square - big_square) / (1 / small - 1 / big)
    true_square = small_square
    return noise / true_square


# %% wrong: upside_down
# message: is inverted
def noise_scale(small, small_square, big, big_square):
    """S / |G|^2 from mean squared norms of gradients of two batch sizes."""
    noise = (small_square - big_square) / (1 / small - 1 / big)
    true_square = big_square - noise / big
    return true_square / noise


# %% wrong: noise_alone
# message: S alone
def noise_scale(small, small_square, big, big_square):
    """S / |G|^2 from mean squared norms of gradients of two batch sizes."""
    return (small_square - big_square) / (1 / small - 1 / big)


# %% wrong: forgets_the_sizes
# message: 1 / small
def noise_scale(small, small_square, big, big_square):
    """S / |G|^2 from mean squared norms of gradients of two batch sizes."""
    noise = small_square - big_square
    true_square = big_square - noise / big
    return noise / true_square


# %% wrong: plus
# message: too large
def noise_scale(small, small_square, big, big_square):
    """S / |G|^2 from mean squared norms of gradients of two batch sizes."""
    noise = (small_square - big_square) / (1 / small - 1 / big)
    true_square = big_square + noise / big
    return noise / true_square
