"""Exercises of day 6: from a cell to a cluster."""

from workshop.lessons.day6.srun_line import SRUN_LINE
from workshop.lessons.day6.starts_needed import STARTS_NEEDED

EXERCISES = (
    SRUN_LINE,
    STARTS_NEEDED,
)
