"""All faults of the failure lab, in the order of its table."""

from __future__ import annotations

from benchmarks.faults.cell import Fault
from benchmarks.faults.ends import DEATHS, HANGS, INTERRUPTS, QUIET
from benchmarks.faults.exceptions import ODD_EXCEPTIONS, ONE_RAISES
from benchmarks.faults.groups import GROUPS, HOLDINGS
from benchmarks.faults.training import TRAINING

__all__ = ["FAULTS", "Fault"]

FAULTS = [*ONE_RAISES, *ODD_EXCEPTIONS, *TRAINING, *GROUPS, *HOLDINGS, *DEATHS, *HANGS, *INTERRUPTS, *QUIET]
