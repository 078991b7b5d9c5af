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
