"""Rehearsals here are forks of one Python that has torch imported: three seconds less for each."""

import pytest


@pytest.fixture(autouse=True)
def _warm(warm_rehearsals):
    """Every test of this folder; `tests/test_warm_python.py` holds the forks equal to new processes."""
