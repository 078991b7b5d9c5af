import math


def round_e4m3(value: float) -> float:
    """The nearest value of E4M3: 3 bits of mantissa, normal from 2**-6, up to 448."""
    if value == 0:
        return value
    exponent = ...  # of the power of two at or below |value|, but never under -6
    step = ...  # from one value of E4M3 to the next
    return ...
