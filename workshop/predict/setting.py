"""The old place of `Setting`; it is in `case`."""

from workshop.predict.case import Setting, reachable

__all__ = ["Setting", "reachable"]
