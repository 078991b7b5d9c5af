"""Exercise: the blocks that llama.cpp calls Q8_0.

ggml's ``block_q8_0`` (github.com/ggml-org/llama.cpp, ggml/src/ggml-common.h) and ``gguf.quants.Q8_0``.
"""

from __future__ import annotations

from typing import Any

from workshop.exercises.engine.check import Call, Wrong, call, shown

BLOCK, BYTES = 32, 34


def _scales(weight: Any) -> Any:
    import numpy as np

    return np.abs(weight.reshape(-1, BLOCK)).max(axis=1, keepdims=True) / np.float32(127)


def _cases() -> list[Any]:
    import numpy as np

    drawn = np.random.default_rng(0)
    ladder = np.arange(-32, 32, dtype=np.float32).reshape(1, 64) * np.float32(0.37)
    random = drawn.normal(size=(3, 96)) * drawn.uniform(0.01, 9, (3, 1))
    with_zeros = np.zeros((2, 64))
    with_zeros[0, :32] = drawn.normal(size=32)
    return [ladder, random.astype(np.float32), with_zeros.astype(np.float32)]


def check(names: dict[str, Any]) -> str:
    """Blocks to read, random rows of several sizes, and a block of zeros."""
    for weight in _cases():
        _one(names["q8_blocks"], weight)
    return "A scale in fp16 and 32 codes: what llama.cpp reads. A block of zeros stays zero."


def _one(function: Any, weight: Any) -> None:
    import numpy as np

    answer = np.asarray(call(function, "q8_blocks", Call((weight.copy(),))))
    shape = (len(weight), weight.shape[1] // BLOCK * BYTES)
    if answer.dtype != np.uint8 or answer.shape != shape:
        raise Wrong(f"`q8_blocks` gave {answer.dtype} of shape {answer.shape}; wanted uint8 of {shape}.")
    blocks = np.ascontiguousarray(answer.reshape(-1, BYTES))
    scales, codes = blocks[:, :2].copy().view(np.float16), blocks[:, 2:].copy().view(np.int8)
    wanted = _scales(weight)
    if not np.allclose(scales.astype(np.float32), wanted.astype(np.float16), rtol=1e-3):
        first = [round(float(each[0, 0]), 5) for each in (scales, wanted)]
        why = _why_scale(scales.astype(np.float32), weight)
        raise Wrong(f"The first block's scale is {first[0]}; wanted {first[1]}. {why}".rstrip())
    exact = np.divide(
        weight.reshape(-1, BLOCK), wanted, out=np.zeros_like(codes, np.float32), where=wanted > 0
    )
    off = np.abs(codes - exact)
    if off.max() > 0.5001:
        at = np.unravel_index(off.argmax(), off.shape)
        advice = f"A number of {exact[at]:.2f} scales got code {codes[at]}"
        cut = bool((np.abs(codes.astype(np.float32)) <= np.abs(exact) + 1e-3).all())
        raise Wrong(
            f"{advice}. {'It was cut off: round to the nearest.' if cut else 'Round to the nearest.'}"
        )


def _why_scale(scales: Any, weight: Any) -> str:
    """What the scales are instead."""
    import numpy as np

    blocks = weight.reshape(-1, BLOCK)

    def same(other: Any) -> bool:
        return bool(np.allclose(scales, other, rtol=2e-3, atol=1e-7))

    if same(np.abs(weight).max(axis=1).repeat(weight.shape[1] // BLOCK)[:, None] / 127):
        return "That is the scale of a whole row: every 32 neighbors have their own."
    if same(np.abs(blocks).max(axis=1, keepdims=True) / 128):
        return "That is divided by 128: the largest code is 127."
    if same(blocks.max(axis=1, keepdims=True) / 127):
        return "A large negative number is large too: take the magnitude."
    return f"Wanted is the largest magnitude of the block, {shown(float(np.abs(blocks[0]).max()))}, over 127."
