"""Exercises of day 4: FP8."""

from workshop.lessons.day4.delayed_scale import DELAYED_SCALE
from workshop.lessons.day4.runs_in_fp8 import RUNS_IN_FP8

EXERCISES = (DELAYED_SCALE, RUNS_IN_FP8)
