"""Exercises of day 2: what ranks say to each other, and when data parallelism stops."""

from workshop.lessons.day2.alpha_beta import ALPHA_BETA
from workshop.lessons.day2.average_gradients import AVERAGE_GRADIENTS
from workshop.lessons.day2.begin_alike import BEGIN_ALIKE
from workshop.lessons.day2.ddp_bytes import DDP_BYTES
from workshop.lessons.day2.fsdp_file import FSDP_FILE
from workshop.lessons.day2.is_unit import IS_UNIT
from workshop.lessons.day2.largest_under_cap import LARGEST_UNDER_CAP
from workshop.lessons.day2.least_traffic import LEAST_TRAFFIC
from workshop.lessons.day2.outer_step import OUTER_STEP
from workshop.lessons.day2.overlapped_average import OVERLAPPED_AVERAGE
from workshop.lessons.day2.ring_all_reduce import RING_ALL_REDUCE
from workshop.lessons.day2.ring_bytes import RING_BYTES
from workshop.lessons.day2.send_with_memory import SEND_WITH_MEMORY
from workshop.lessons.day2.wrong_settings import WRONG_SETTINGS
from workshop.lessons.day2.zero_bytes import ZERO_BYTES
from workshop.lessons.day2.zero_step import ZERO_STEP

EXERCISES = (
    RING_ALL_REDUCE,
    RING_BYTES,
    ALPHA_BETA,
    AVERAGE_GRADIENTS,
    BEGIN_ALIKE,
    OVERLAPPED_AVERAGE,
    DDP_BYTES,
    LARGEST_UNDER_CAP,
    ZERO_BYTES,
    ZERO_STEP,
    IS_UNIT,
    LEAST_TRAFFIC,
    WRONG_SETTINGS,
    FSDP_FILE,
    SEND_WITH_MEMORY,
    OUTER_STEP,
)
