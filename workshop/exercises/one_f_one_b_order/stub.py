def one_f_one_b_order(rank: int, ranks: int, micro_batches: int) -> list[str]:
    """The actions of a rank: F0, F1, ..., and B0, B1, ..., in the order of 1F1B."""
    warm_up = ...  # forwards before the first pair of F and B
    order = [f"F{micro}" for micro in range(warm_up)]
    order += ...  # pairs
    order += ...  # what is left
    return order
