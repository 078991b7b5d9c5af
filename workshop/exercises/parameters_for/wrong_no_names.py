import math


def parameters_for(
    num_people: int,
    num_names: int,
    choices: list[int],
    bits_per_parameter: float,
) -> int:
    """Parameters of a model that knows the names and attributes of so many people."""
    values = num_people * sum(math.log2(count) for count in choices)
    return math.ceil(values / bits_per_parameter)
