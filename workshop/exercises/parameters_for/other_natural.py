import math


def parameters_for(
    num_people: int,
    num_names: int,
    choices: list[int],
    bits_per_parameter: float,
) -> int:
    """Parameters of a model that knows the names and attributes of so many people."""
    nats = math.log(num_names) - math.log(num_people)
    for count in choices:
        nats += math.log(count)
    return math.ceil(num_people * nats / math.log(2) / bits_per_parameter)
