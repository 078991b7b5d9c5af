def gpus_for_deadline(
    params: dict[str, float], tokens: float, days: float, sheet: dict[str, float], mfu: float
) -> int:
    flops = 6 * tokens * sum(count for part, count in params.items() if part != "embedding")
    nodes = 1
    while 8 * nodes * sheet["bf16"] * mfu * days * 86_400 < flops:
        nodes += 1
    return 8 * nodes
