"""Exercises of day 5: adapting a model with little, and making it smaller."""

from workshop.lessons.day5.gptq_column import GPTQ_COLUMN
from workshop.lessons.day5.lora_forward import LORA_FORWARD
from workshop.lessons.day5.nf4_codes import NF4_CODES
from workshop.lessons.day5.qlora_bytes import QLORA_BYTES
from workshop.lessons.day5.quantize_groups import QUANTIZE_GROUPS
from workshop.lessons.day5.soft_loss import SOFT_LOSS
from workshop.lessons.day5.two_of_four import TWO_OF_FOUR

EXERCISES = (
    LORA_FORWARD,
    NF4_CODES,
    QLORA_BYTES,
    QUANTIZE_GROUPS,
    GPTQ_COLUMN,
    SOFT_LOSS,
    TWO_OF_FOUR,
)
