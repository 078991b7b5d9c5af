"""Exercises of day 2: what ranks say to each other, and when data parallelism stops."""

from workshop.lessons.day2.alpha_beta import ALPHA_BETA
from workshop.lessons.day2.average_gradients import AVERAGE_GRADIENTS
from workshop.lessons.day2.ddp_bytes import DDP_BYTES
from workshop.lessons.day2.largest_under_cap import LARGEST_UNDER_CAP
from workshop.lessons.day2.ring_all_reduce import RING_ALL_REDUCE
from workshop.lessons.day2.ring_bytes import RING_BYTES

EXERCISES = (RING_ALL_REDUCE, RING_BYTES, ALPHA_BETA, AVERAGE_GRADIENTS, DDP_BYTES, LARGEST_UNDER_CAP)
