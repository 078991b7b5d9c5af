"""Bytes of a training step on one rank: what is held, what is saved for backward, when the peak comes."""

from workshop.predict.memory.peaks import (
    INTERVAL,
    MemoryPrediction,
    device_bytes,
    memory_on,
    predict_memory,
    saved_activations,
)

__all__ = [
    "INTERVAL",
    "MemoryPrediction",
    "device_bytes",
    "memory_on",
    "predict_memory",
    "saved_activations",
]
