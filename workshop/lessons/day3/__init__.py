"""Exercises of day 3: how a model is cut over ranks, and what each cut costs."""

from workshop.lessons.day3.axis_order import AXIS_ORDER
from workshop.lessons.day3.balance_bias import BALANCE_BIAS
from workshop.lessons.day3.bubble_share import BUBBLE_SHARE
from workshop.lessons.day3.choose_axes import CHOOSE_AXES
from workshop.lessons.day3.columns_first import COLUMNS_FIRST
from workshop.lessons.day3.context_bytes import CONTEXT_BYTES
from workshop.lessons.day3.gpus_of_layout import GPUS_OF_LAYOUT
from workshop.lessons.day3.one_f_one_b_order import ONE_F_ONE_B_ORDER
from workshop.lessons.day3.place_cut import PLACE_CUT
from workshop.lessons.day3.rotate_the_ring import ROTATE_THE_RING
from workshop.lessons.day3.row_parallel_backward import ROW_PARALLEL_BACKWARD

EXERCISES = (
    COLUMNS_FIRST,
    ROW_PARALLEL_BACKWARD,
    ONE_F_ONE_B_ORDER,
    ROTATE_THE_RING,
    CONTEXT_BYTES,
    BALANCE_BIAS,
    GPUS_OF_LAYOUT,
    CHOOSE_AXES,
    BUBBLE_SHARE,
    PLACE_CUT,
    AXIS_ORDER,
)
