# %% other: loop
import numpy as np


def q8_blocks(weight):
    """Block by block, a half to the even code, and bytes joined as bytes."""
    made = []
    for row in np.asarray(weight, dtype=np.float32):
        for block in row.reshape(-1, 32):
            d = np.float32(max(abs(block)) / 127)
            codes = np.rint(block / d if d else block * 0).astype(np.int8)
            made.append(np.float16(d).tobytes() + codes.tobytes())
    return np.frombuffer(b"".join(made), np.uint8).reshape(len(weight), -1)


# %% wrong: cuts_off
# message: cut off
import numpy as np


def q8_blocks(weight: np.ndarray) -> np.ndarray:
    """Q8_0: fp32 (rows, columns) to bytes (rows, columns / 32 * 34)."""
    blocks = weight.reshape(-1, 32)
    scale = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)
    scaled = blocks * inverse
    codes = np.trunc(scaled).astype(np.int8)
    parts = scale.astype(np.float16).view(np.uint8), codes.view(np.uint8)
    return np.concatenate(parts, axis=1).reshape(len(weight), -1)


# %% wrong: one_scale_a_row
# message: scale of a whole row
import numpy as np


def q8_blocks(weight: np.ndarray) -> np.ndarray:
    """Q8_0: fp32 (rows, columns) to bytes (rows, columns / 32 * 34)."""
    blocks = weight.reshape(-1, 32)
    scale = np.abs(weight).max(axis=1).repeat(weight.shape[1] // 32)[:, None] / np.float32(127)
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)
    scaled = blocks * inverse
    codes = np.trunc(scaled + np.copysign(np.float32(0.5), scaled)).astype(np.int8)
    parts = scale.astype(np.float16).view(np.uint8), codes.view(np.uint8)
    return np.concatenate(parts, axis=1).reshape(len(weight), -1)


# %% wrong: by_128
# message: divided by 128
import numpy as np


def q8_blocks(weight: np.ndarray) -> np.ndarray:
    """Q8_0: fp32 (rows, columns) to bytes (rows, columns / 32 * 34)."""
    blocks = weight.reshape(-1, 32)
    scale = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(128)
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)
    scaled = blocks * inverse
    codes = np.trunc(scaled + np.copysign(np.float32(0.5), scaled)).clip(-128, 127).astype(np.int8)
    parts = scale.astype(np.float16).view(np.uint8), codes.view(np.uint8)
    return np.concatenate(parts, axis=1).reshape(len(weight), -1)


# %% wrong: without_magnitude
# message: take the magnitude
import numpy as np


def q8_blocks(weight: np.ndarray) -> np.ndarray:
    """Q8_0: fp32 (rows, columns) to bytes (rows, columns / 32 * 34)."""
    blocks = weight.reshape(-1, 32)
    scale = blocks.max(axis=1, keepdims=True) / np.float32(127)
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)
    scaled = blocks * inverse
    codes = np.trunc(scaled + np.copysign(np.float32(0.5), scaled)).clip(-128, 127).astype(np.int8)
    parts = scale.astype(np.float16).view(np.uint8), codes.view(np.uint8)
    return np.concatenate(parts, axis=1).reshape(len(weight), -1)
