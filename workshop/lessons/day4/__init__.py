"""Exercises of day 4: FP8."""

from workshop.lessons.day4.delayed_scale import DELAYED_SCALE

EXERCISES = (DELAYED_SCALE,)
