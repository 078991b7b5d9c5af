# %% other: by_class
from workshop.models.gpt import Layer


def is_unit(module):
    return isinstance(module, Layer)


# %% wrong: as_it_was
# message: Each pays for its start
def is_unit(module) -> bool:
    """Whether a module of our GPT is a unit of its own."""
    kind = type(module).__name__
    return kind in ("Attention", "Linear")


# %% wrong: the_whole_decoder
# message: needs room for all of them at once
def is_unit(module) -> bool:
    """Whether a module of our GPT is a unit of its own."""
    kind = type(module).__name__
    return kind == "Decoder"


# %% wrong: half_of_each_layer
# message: The largest gather is the root's
def is_unit(module) -> bool:
    """Whether a module of our GPT is a unit of its own."""
    kind = type(module).__name__
    return kind == "Attention"


# %% wrong: nothing
# message: said yes to no module
def is_unit(module) -> bool:
    """Whether a module of our GPT is a unit of its own."""
    return False


# %% wrong: the_list
# message: ModuleList
def is_unit(module) -> bool:
    """Whether a module of our GPT is a unit of its own."""
    kind = type(module).__name__
    return kind == "ModuleList"
