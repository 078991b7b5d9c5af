"""Exercises of day 5: to train less, and to keep less."""

from workshop.lessons.day5.lora_forward import LORA_FORWARD
from workshop.lessons.day5.nf4_codes import NF4_CODES
from workshop.lessons.day5.qlora_bytes import QLORA_BYTES

EXERCISES = (
    LORA_FORWARD,
    NF4_CODES,
    QLORA_BYTES,
)
