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
