"""Exercises of day 3: how a model is cut over ranks, and what each cut costs."""

from workshop.lessons.day3.bubble_share import BUBBLE_SHARE
from workshop.lessons.day3.choose_axes import CHOOSE_AXES
from workshop.lessons.day3.gpus_of_layout import GPUS_OF_LAYOUT

EXERCISES = (GPUS_OF_LAYOUT, CHOOSE_AXES, BUBBLE_SHARE)
