"""Exercises of day 6: from a cell to a cluster, failures, checkpoints, and the plan of a run."""

from workshop.lessons.day6.checkpoint_interval import CHECKPOINT_INTERVAL
from workshop.lessons.day6.first_to_fail import FIRST_TO_FAIL
from workshop.lessons.day6.fix_the_guard import FIX_THE_GUARD
from workshop.lessons.day6.gpus_for_deadline import GPUS_FOR_DEADLINE
from workshop.lessons.day6.srun_line import SRUN_LINE
from workshop.lessons.day6.starts_needed import STARTS_NEEDED
from workshop.lessons.day6.what_to_save import WHAT_TO_SAVE

EXERCISES = (
    SRUN_LINE,
    STARTS_NEEDED,
    FIX_THE_GUARD,
    FIRST_TO_FAIL,
    WHAT_TO_SAVE,
    GPUS_FOR_DEADLINE,
    CHECKPOINT_INTERVAL,
)
