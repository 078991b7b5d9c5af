"""Look at what really happened, on this rank and this device."""

from workshop.measure.held import count_from_here, held_bytes

__all__ = ["count_from_here", "held_bytes"]
