import math


def parameters_for(
    num_people: int,
    num_names: int,
    choices: list[int],
    bits_per_parameter: float,
) -> int:
    """Parameters of a model that knows the names and attributes of so many people."""
    each = math.log2(num_names * math.prod(choices)) - math.log2(num_people)
    parameters = num_people * each / bits_per_parameter
    return int(parameters) + (parameters > int(parameters))
