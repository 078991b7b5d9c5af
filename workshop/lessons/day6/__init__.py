"""Exercises of day 6: the cluster, failures, checkpoints, and the plan of a run."""

from workshop.lessons.day6.checkpoint_interval import CHECKPOINT_INTERVAL
from workshop.lessons.day6.gpus_for_deadline import GPUS_FOR_DEADLINE

EXERCISES = (
    CHECKPOINT_INTERVAL,
    GPUS_FOR_DEADLINE,
)
