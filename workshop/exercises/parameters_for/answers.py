# %% other: natural
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


# %% other: product
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


# %% wrong: no_names
# message: names are missing
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


# %% wrong: names_in_order
# message: order
import math


def parameters_for(
    num_people: int,
    num_names: int,
    choices: list[int],
    bits_per_parameter: float,
) -> int:
    """Parameters of a model that knows the names and attributes of so many people."""
    names = num_people * math.log2(num_names)
    values = num_people * sum(math.log2(count) for count in choices)
    return math.ceil((names + values) / bits_per_parameter)


# %% wrong: choices_added
# message: Each attribute
import math


def parameters_for(
    num_people: int,
    num_names: int,
    choices: list[int],
    bits_per_parameter: float,
) -> int:
    """Parameters of a model that knows the names and attributes of so many people."""
    names = num_people * math.log2(num_names / num_people)
    values = num_people * math.log2(sum(choices))
    return math.ceil((names + values) / bits_per_parameter)


# %% wrong: nats
# message: natural logarithm
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


# %% wrong: multiplied
# message: divided
import math


def parameters_for(
    num_people: int,
    num_names: int,
    choices: list[int],
    bits_per_parameter: float,
) -> int:
    """Parameters of a model that knows the names and attributes of so many people."""
    names = num_people * math.log2(num_names / num_people)
    values = num_people * sum(math.log2(count) for count in choices)
    return math.ceil((names + values) * bits_per_parameter)


# %% wrong: rounded_down
# message: rounded up
import math


def parameters_for(
    num_people: int,
    num_names: int,
    choices: list[int],
    bits_per_parameter: float,
) -> int:
    """Parameters of a model that knows the names and attributes of so many people."""
    names = num_people * math.log2(num_names / num_people)
    values = num_people * sum(math.log2(count) for count in choices)
    return int((names + values) / bits_per_parameter)


# %% wrong: one_person
# message: every person
import math


def parameters_for(
    num_people: int,
    num_names: int,
    choices: list[int],
    bits_per_parameter: float,
) -> int:
    """Parameters of a model that knows the names and attributes of so many people."""
    names = num_people * math.log2(num_names / num_people)
    values = sum(math.log2(count) for count in choices)
    return math.ceil((names + values) / bits_per_parameter)
