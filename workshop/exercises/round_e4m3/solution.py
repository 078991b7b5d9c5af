import math


def round_e4m3(value: float) -> float:
    """The nearest value of E4M3: 3 bits of mantissa, normal from 2**-6, up to 448."""
    if value == 0:
        return value
    exponent = max(math.floor(math.log2(abs(value))), -6)
    step = 2.0 ** (exponent - 3)
    nearest = round(abs(value) / step) * step
    return math.copysign(min(nearest, 448.0), value)
