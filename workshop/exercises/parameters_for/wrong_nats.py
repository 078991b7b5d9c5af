import math


def parameters_for(
    num_people: int,
    num_names: int,
    choices: list[int],
    bits_per_parameter: float,
) -> int:
    """Parameters of a model that knows the names and attributes of so many people."""
    names = num_people * math.log(num_names / num_people)
    values = num_people * sum(math.log(count) for count in choices)
    return math.ceil((names + values) / bits_per_parameter)
