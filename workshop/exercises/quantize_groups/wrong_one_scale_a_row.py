import numpy as np


def quantize_groups(weight, group_size, bits, clip=1.0):
    """Codes (rows, columns) and scales (rows, groups) of an array (rows, columns)."""
    rows, columns = weight.shape
    groups = weight.reshape(rows, columns // group_size, group_size)
    scales = clip * np.tile(np.abs(weight).max(1), (groups.shape[1], 1)).T / (2 ** (bits - 1) - 1)
    codes = np.round(groups / scales[..., None])
    codes = np.clip(codes, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return codes.reshape(rows, columns), scales
