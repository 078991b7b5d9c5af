"""Exercises of day 1: numbers and tensors, and what a training step costs, in time and in memory."""

from workshop.lessons.day1.activation_bytes import ACTIVATION_BYTES
from workshop.lessons.day1.adamw_step import ADAMW_STEP
from workshop.lessons.day1.busy_share import BUSY_SHARE
from workshop.lessons.day1.days_to_train import DAYS_TO_TRAIN
from workshop.lessons.day1.largest_micro_batch import LARGEST_MICRO_BATCH
from workshop.lessons.day1.mfu import MFU
from workshop.lessons.day1.next_scale import NEXT_SCALE
from workshop.lessons.day1.round_e4m3 import ROUND_E4M3
from workshop.lessons.day1.self_seconds import SELF_SECONDS
from workshop.lessons.day1.step_bytes import STEP_BYTES
from workshop.lessons.day1.train_flops import TRAIN_FLOPS
from workshop.lessons.day1.which_copy import WHICH_COPY

EXERCISES = (
    *(ROUND_E4M3, WHICH_COPY),
    *(TRAIN_FLOPS, DAYS_TO_TRAIN, MFU),
    *(STEP_BYTES, ACTIVATION_BYTES, LARGEST_MICRO_BATCH),
    NEXT_SCALE,
    ADAMW_STEP,
    *(BUSY_SHARE, SELF_SECONDS),
)
