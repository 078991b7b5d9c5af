# %% other: counts_nodes
def gpus_for_deadline(
    params: dict[str, float], tokens: float, days: float, sheet: dict[str, float], mfu: float
) -> int:
    flops = 6 * tokens * sum(count for part, count in params.items() if part != "embedding")
    nodes = 1
    while 8 * nodes * sheet["bf16"] * mfu * days * 86_400 < flops:
        nodes += 1
    return 8 * nodes


# %% wrong: recomputation
# message: count the recomputation
from math import ceil


def gpus_for_deadline(
    params: dict[str, float], tokens: float, days: float, sheet: dict[str, float], mfu: float
) -> int:
    """GPUs, in whole nodes of eight, that see so many tokens in so many days."""
    flops = 8 * (params["layers"] + params["head"]) * tokens
    flops_of_one_gpu = sheet["bf16"] * mfu * days * 24 * 60 * 60
    return 8 * ceil(flops / flops_of_one_gpu / 8)


# %% wrong: embedding
# message: is a look-up
from math import ceil


def gpus_for_deadline(
    params: dict[str, float], tokens: float, days: float, sheet: dict[str, float], mfu: float
) -> int:
    """GPUs, in whole nodes of eight, that see so many tokens in so many days."""
    flops = 6 * sum(params.values()) * tokens
    flops_of_one_gpu = sheet["bf16"] * mfu * days * 24 * 60 * 60
    return 8 * ceil(flops / flops_of_one_gpu / 8)


# %% wrong: sparse_peak
# message: 2:4 sparse
from math import ceil


def gpus_for_deadline(
    params: dict[str, float], tokens: float, days: float, sheet: dict[str, float], mfu: float
) -> int:
    """GPUs, in whole nodes of eight, that see so many tokens in so many days."""
    flops = 6 * (params["layers"] + params["head"]) * tokens
    flops_of_one_gpu = sheet["bf16 sparse"] * mfu * days * 24 * 60 * 60
    return 8 * ceil(flops / flops_of_one_gpu / 8)


# %% wrong: at_the_peak
# message: at their peak
from math import ceil


def gpus_for_deadline(
    params: dict[str, float], tokens: float, days: float, sheet: dict[str, float], mfu: float
) -> int:
    """GPUs, in whole nodes of eight, that see so many tokens in so many days."""
    flops = 6 * (params["layers"] + params["head"]) * tokens
    flops_of_one_gpu = sheet["bf16"] * days * 24 * 60 * 60
    return 8 * ceil(flops / flops_of_one_gpu / 8)


# %% wrong: no_nodes
# message: nodes of eight
from math import ceil


def gpus_for_deadline(
    params: dict[str, float], tokens: float, days: float, sheet: dict[str, float], mfu: float
) -> int:
    """GPUs, in whole nodes of eight, that see so many tokens in so many days."""
    flops = 6 * (params["layers"] + params["head"]) * tokens
    flops_of_one_gpu = sheet["bf16"] * mfu * days * 24 * 60 * 60
    return ceil(flops / flops_of_one_gpu)


# %% wrong: rounded_down
# message: after the deadline
def gpus_for_deadline(
    params: dict[str, float], tokens: float, days: float, sheet: dict[str, float], mfu: float
) -> int:
    """GPUs, in whole nodes of eight, that see so many tokens in so many days."""
    flops = 6 * (params["layers"] + params["head"]) * tokens
    flops_of_one_gpu = sheet["bf16"] * mfu * days * 24 * 60 * 60
    return 8 * int(flops / flops_of_one_gpu / 8)
