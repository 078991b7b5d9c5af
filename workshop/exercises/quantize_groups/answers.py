# %% other: half_up
import numpy as np


def quantize_groups(weight, group_size, bits, clip=1.0):
    """From the middle between two codes always up, and the codes as whole numbers."""
    rows, columns = weight.shape
    groups = weight.reshape(rows, -1, group_size)
    largest = 2 ** (bits - 1) - 1
    scales = clip * abs(groups).max(axis=-1) / largest
    codes = np.floor(groups / scales[..., None] + 0.5).clip(-largest - 1, largest).astype(int)
    return codes.reshape(rows, columns), scales


# %% other: loops
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


# %% wrong: one_scale_for_all
# message: for the whole matrix
import numpy as np


def quantize_groups(weight, group_size, bits, clip=1.0):
    """Codes (rows, columns) and scales (rows, groups) of an array (rows, columns)."""
    rows, columns = weight.shape
    groups = weight.reshape(rows, columns // group_size, group_size)
    scales = clip * np.full(groups.shape[:2], np.abs(weight).max()) / (2 ** (bits - 1) - 1)
    codes = np.round(groups / scales[..., None])
    codes = np.clip(codes, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return codes.reshape(rows, columns), scales


# %% wrong: one_scale_a_row
# message: one scale for a row
import numpy as np


def quantize_groups(weight, group_size, bits, clip=1.0):
    """Codes (rows, columns) and scales (rows, groups) of an array (rows, columns)."""
    rows, columns = weight.shape
    groups = weight.reshape(rows, columns // group_size, group_size)
    scales = clip * np.tile(np.abs(weight).max(1), (groups.shape[1], 1)).T / (2 ** (bits - 1) - 1)
    codes = np.round(groups / scales[..., None])
    codes = np.clip(codes, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return codes.reshape(rows, columns), scales


# %% wrong: no_clamp
# message: does not fit into 4 bits
import numpy as np


def quantize_groups(weight, group_size, bits, clip=1.0):
    """Codes (rows, columns) and scales (rows, groups) of an array (rows, columns)."""
    rows, columns = weight.shape
    groups = weight.reshape(rows, columns // group_size, group_size)
    scales = clip * np.abs(groups).max(-1) / (2 ** (bits - 1) - 1)
    codes = np.round(groups / scales[..., None])
    return codes.reshape(rows, columns), scales


# %% wrong: one_code_too_many
# message: one too many
import numpy as np


def quantize_groups(weight, group_size, bits, clip=1.0):
    """Codes (rows, columns) and scales (rows, groups) of an array (rows, columns)."""
    rows, columns = weight.shape
    groups = weight.reshape(rows, columns // group_size, group_size)
    scales = clip * np.abs(groups).max(-1) / 2 ** (bits - 1)
    codes = np.round(groups / scales[..., None])
    codes = np.clip(codes, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return codes.reshape(rows, columns), scales


# %% wrong: all_the_bits_on_one_side
# message: are the whole range
import numpy as np


def quantize_groups(weight, group_size, bits, clip=1.0):
    """Codes (rows, columns) and scales (rows, groups) of an array (rows, columns)."""
    rows, columns = weight.shape
    groups = weight.reshape(rows, columns // group_size, group_size)
    scales = clip * np.abs(groups).max(-1) / (2**bits - 1)
    codes = np.round(groups / scales[..., None])
    codes = np.clip(codes, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return codes.reshape(rows, columns), scales


# %% wrong: cuts_off
# message: cutting off
import numpy as np


def quantize_groups(weight, group_size, bits, clip=1.0):
    """Codes (rows, columns) and scales (rows, groups) of an array (rows, columns)."""
    rows, columns = weight.shape
    groups = weight.reshape(rows, columns // group_size, group_size)
    scales = clip * np.abs(groups).max(-1) / (2 ** (bits - 1) - 1)
    codes = np.trunc(groups / scales[..., None])
    codes = np.clip(codes, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return codes.reshape(rows, columns), scales


# %% wrong: the_largest_not_the_magnitude
# message: take the magnitude
import numpy as np


def quantize_groups(weight, group_size, bits, clip=1.0):
    """Codes (rows, columns) and scales (rows, groups) of an array (rows, columns)."""
    rows, columns = weight.shape
    groups = weight.reshape(rows, columns // group_size, group_size)
    scales = clip * groups.max(-1) / (2 ** (bits - 1) - 1)
    codes = np.round(groups / scales[..., None])
    codes = np.clip(codes, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return codes.reshape(rows, columns), scales
