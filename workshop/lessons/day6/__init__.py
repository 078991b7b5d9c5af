"""Exercises of day 6: the cluster, failures, checkpoints, and the plan of a run."""

from workshop.lessons.day6.checkpoint_interval import CHECKPOINT_INTERVAL
from workshop.lessons.day6.gpus_for_deadline import GPUS_FOR_DEADLINE
from workshop.lessons.day6.what_to_save import WHAT_TO_SAVE

EXERCISES = (
    WHAT_TO_SAVE,
    GPUS_FOR_DEADLINE,
    CHECKPOINT_INTERVAL,
)
