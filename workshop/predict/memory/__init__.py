"""Bytes of a training step on one rank: what is held, what is saved for backward, when the peak comes."""

from workshop.predict.memory.peaks import (
    MemoryPrediction,
    device_bytes,
    margins_of,
    memory_on,
    predict_memory,
    saved_activations,
)

__all__ = [
    "MemoryPrediction",
    "device_bytes",
    "margins_of",
    "memory_on",
    "predict_memory",
    "saved_activations",
]
