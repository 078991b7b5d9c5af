"""The exact counter of torch's CPU allocator, for the modules of this room: `workshop.process.live_bytes`.

It lives a floor below because the cap on a rank's memory (`--device-memory`) needs it too.
"""

from workshop.process.live_bytes import CounterUnavailable, enable, live_bytes

__all__ = ["CounterUnavailable", "enable", "live_bytes"]
