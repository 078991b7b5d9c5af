import numpy as np


def quantize_groups(weight, group_size, bits, clip=1.0):
    """From the middle between two codes always up, and the codes as whole numbers."""
    rows, columns = weight.shape
    groups = weight.reshape(rows, -1, group_size)
    largest = 2 ** (bits - 1) - 1
    scales = clip * abs(groups).max(axis=-1) / largest
    codes = np.floor(groups / scales[..., None] + 0.5).clip(-largest - 1, largest).astype(int)
    return codes.reshape(rows, columns), scales
