"""All faults of the failure lab, in the order of its table."""

from __future__ import annotations

from benchmarks.fault_cell import Fault
from benchmarks.fault_ends import DEATHS, HANGS, INTERRUPTS, QUIET
from benchmarks.fault_exceptions import ODD_EXCEPTIONS, ONE_RAISES

__all__ = ["FAULTS", "Fault"]

FAULTS = [*ONE_RAISES, *ODD_EXCEPTIONS, *DEATHS, *HANGS, *INTERRUPTS, *QUIET]
