import numpy as np


def quantize_groups(weight, group_size, bits, clip=1.0):
    codes = np.empty_like(weight)
    scales = np.empty((weight.shape[0], weight.shape[1] // group_size))
    for row in range(weight.shape[0]):
        for group in range(scales.shape[1]):
            part = slice(group * group_size, (group + 1) * group_size)
            scale = clip * max(abs(weight[row, part])) / (2 ** (bits - 1) - 1)
            scales[row, group] = scale
            codes[row, part] = np.rint(weight[row, part] / scale).clip(
                -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
            )
    return codes, scales
