def round_e4m3(value: float) -> float:
    """The nearest of all values of E4M3; of two equally near, the one whose mantissa is even."""
    tiny = [(mantissa, mantissa * 2.0**-9) for mantissa in range(8)]
    normal = [
        (mantissa, (8 + mantissa) * 2.0**exponent) for exponent in range(-9, 6) for mantissa in range(8)
    ]
    values = [(mantissa, size) for mantissa, size in tiny + normal if size <= 448]
    _, _, nearest = min((abs(abs(value) - size), mantissa % 2, size) for mantissa, size in values)
    return nearest if value >= 0 else -nearest
