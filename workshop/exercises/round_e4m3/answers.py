# %% other: search
def round_e4m3(value: float) -> float:
    """The nearest of all values of E4M3; of two equally near, the one whose mantissa is even."""
    tiny = [(mantissa, mantissa * 2.0**-9) for mantissa in range(8)]
    normal = [
        (mantissa, (8 + mantissa) * 2.0**exponent) for exponent in range(-9, 6) for mantissa in range(8)
    ]
    values = [(mantissa, size) for mantissa, size in tiny + normal if size <= 448]
    _, _, nearest = min((abs(abs(value) - size), mantissa % 2, size) for mantissa, size in values)
    return nearest if value >= 0 else -nearest


# %% wrong: cuts
# message: cuts the digits off
import math


def round_e4m3(value: float) -> float:
    """The nearest value of E4M3: 3 bits of mantissa, normal from 2**-6, up to 448."""
    if value == 0:
        return value
    exponent = max(math.floor(math.log2(abs(value))), -6)
    step = 2.0 ** (exponent - 3)
    nearest = math.floor(abs(value) / step) * step
    return math.copysign(min(nearest, 448.0), value)


# %% wrong: up_from_the_middle
# message: always goes up
import math


def round_e4m3(value: float) -> float:
    """The nearest value of E4M3: 3 bits of mantissa, normal from 2**-6, up to 448."""
    if value == 0:
        return value
    exponent = max(math.floor(math.log2(abs(value))), -6)
    step = 2.0 ** (exponent - 3)
    nearest = math.floor(abs(value) / step + 0.5) * step
    return math.copysign(min(nearest, 448.0), value)


# %% wrong: finer_and_finer
# message: no finer steps
import math


def round_e4m3(value: float) -> float:
    """The nearest value of E4M3: 3 bits of mantissa, normal from 2**-6, up to 448."""
    if value == 0:
        return value
    exponent = math.floor(math.log2(abs(value)))
    step = 2.0 ** (exponent - 3)
    nearest = round(abs(value) / step) * step
    return math.copysign(min(nearest, 448.0), value)


# %% wrong: no_end
# message: ends at 448
import math


def round_e4m3(value: float) -> float:
    """The nearest value of E4M3: 3 bits of mantissa, normal from 2**-6, up to 448."""
    if value == 0:
        return value
    exponent = max(math.floor(math.log2(abs(value))), -6)
    step = 2.0 ** (exponent - 3)
    nearest = round(abs(value) / step) * step
    return math.copysign(nearest, value)


# %% wrong: two_bits
# message: there are four
import math


def round_e4m3(value: float) -> float:
    """The nearest value of E4M3: 3 bits of mantissa, normal from 2**-6, up to 448."""
    if value == 0:
        return value
    exponent = max(math.floor(math.log2(abs(value))), -6)
    step = 2.0 ** (exponent - 2)
    nearest = round(abs(value) / step) * step
    return math.copysign(min(nearest, 448.0), value)


# %% wrong: four_bits
# message: there are sixteen
import math


def round_e4m3(value: float) -> float:
    """The nearest value of E4M3: 3 bits of mantissa, normal from 2**-6, up to 448."""
    if value == 0:
        return value
    exponent = max(math.floor(math.log2(abs(value))), -6)
    step = 2.0 ** (exponent - 4)
    nearest = round(abs(value) / step) * step
    return math.copysign(min(nearest, 448.0), value)


# %% wrong: no_sign
# message: The sign is lost
import math


def round_e4m3(value: float) -> float:
    """The nearest value of E4M3: 3 bits of mantissa, normal from 2**-6, up to 448."""
    if value == 0:
        return value
    exponent = max(math.floor(math.log2(abs(value))), -6)
    step = 2.0 ** (exponent - 3)
    nearest = round(abs(value) / step) * step
    return min(nearest, 448.0)
