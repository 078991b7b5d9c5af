def one_f_one_b_order(rank: int, ranks: int, micro_batches: int) -> list[str]:
    """The actions of a rank: F0, F1, ..., and B0, B1, ..., in the order of 1F1B."""
    warm_up = ranks - rank - 1
    order = [f"F{micro}" for micro in range(warm_up)]
    for micro in range(micro_batches - warm_up):
        order += [f"F{warm_up + micro}", f"B{micro}"]
    order += [f"B{micro}" for micro in range(micro_batches - warm_up, micro_batches)]
    return order
