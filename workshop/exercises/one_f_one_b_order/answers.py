# %% other: greedy
def one_f_one_b_order(rank, ranks, micro_batches):
    order, started, returned = [], 0, 0
    while returned < micro_batches:
        if started < micro_batches and started - returned < ranks - rank:
            order.append(f"F{started}")
            started += 1
        else:
            order.append(f"B{returned}")
            returned += 1
    return tuple(order)


# %% wrong: all_forwards_first
# message: rank 0 keeps 8 at once
def one_f_one_b_order(rank: int, ranks: int, micro_batches: int) -> list[str]:
    """The actions of a rank: F0, F1, ..., and B0, B1, ..., in the order of 1F1B."""
    warm_up = micro_batches
    order = [f"F{micro}" for micro in range(warm_up)]
    for micro in range(micro_batches - warm_up):
        order += [f"F{warm_up + micro}", f"B{micro}"]
    order += [f"B{micro}" for micro in range(micro_batches - warm_up, micro_batches)]
    return order


# %% wrong: one_warm_up_too_few
# message: too few forwards ahead
def one_f_one_b_order(rank: int, ranks: int, micro_batches: int) -> list[str]:
    """The actions of a rank: F0, F1, ..., and B0, B1, ..., in the order of 1F1B."""
    warm_up = min(max(ranks - rank - 2, 0), micro_batches)
    order = [f"F{micro}" for micro in range(warm_up)]
    for micro in range(micro_batches - warm_up):
        order += [f"F{warm_up + micro}", f"B{micro}"]
    order += [f"B{micro}" for micro in range(micro_batches - warm_up, micro_batches)]
    return order


# %% wrong: no_cool_down
# message: never runs B5, B6, B7
def one_f_one_b_order(rank: int, ranks: int, micro_batches: int) -> list[str]:
    """The actions of a rank: F0, F1, ..., and B0, B1, ..., in the order of 1F1B."""
    warm_up = min(ranks - rank - 1, micro_batches)
    order = [f"F{micro}" for micro in range(warm_up)]
    for micro in range(micro_batches - warm_up):
        order += [f"F{warm_up + micro}", f"B{micro}"]
    return order


# %% wrong: one_warm_up_too_many
# message: rank 0 keeps 5 at once
def one_f_one_b_order(rank: int, ranks: int, micro_batches: int) -> list[str]:
    """The actions of a rank: F0, F1, ..., and B0, B1, ..., in the order of 1F1B."""
    warm_up = min(ranks - rank, micro_batches)
    order = [f"F{micro}" for micro in range(warm_up)]
    for micro in range(micro_batches - warm_up):
        order += [f"F{warm_up + micro}", f"B{micro}"]
    order += [f"B{micro}" for micro in range(micro_batches - warm_up, micro_batches)]
    return order


# %% wrong: counted_from_the_wrong_end
# message: wait for each other
def one_f_one_b_order(rank: int, ranks: int, micro_batches: int) -> list[str]:
    """The actions of a rank: F0, F1, ..., and B0, B1, ..., in the order of 1F1B."""
    warm_up = min(rank, micro_batches)
    order = [f"F{micro}" for micro in range(warm_up)]
    for micro in range(micro_batches - warm_up):
        order += [f"F{warm_up + micro}", f"B{micro}"]
    order += [f"B{micro}" for micro in range(micro_batches - warm_up, micro_batches)]
    return order


# %% wrong: few_micro_batches_forgotten
# message: 'F2'; the actions are F0 to B1
def one_f_one_b_order(rank: int, ranks: int, micro_batches: int) -> list[str]:
    """The actions of a rank: F0, F1, ..., and B0, B1, ..., in the order of 1F1B."""
    warm_up = ranks - rank - 1
    order = [f"F{micro}" for micro in range(warm_up)]
    for micro in range(micro_batches - warm_up):
        order += [f"F{warm_up + micro}", f"B{micro}"]
    order += [f"B{micro}" for micro in range(micro_batches - warm_up, micro_batches)]
    return order
