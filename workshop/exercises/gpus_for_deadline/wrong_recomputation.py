from math import ceil


def gpus_for_deadline(
    params: dict[str, float], tokens: float, days: float, sheet: dict[str, float], mfu: float
) -> int:
    """GPUs, in whole nodes of eight, that see so many tokens in so many days."""
    flops = 8 * (params["layers"] + params["head"]) * tokens
    flops_of_one_gpu = sheet["bf16"] * mfu * days * 24 * 60 * 60
    return 8 * ceil(flops / flops_of_one_gpu / 8)
