def least_traffic(choices, cap_bytes):
    best = None
    for choice in choices:
        better = best is None or (choice[2], choice[1]) < (best[2], best[1])
        if choice[1] <= cap_bytes and better:
            best = choice
    return best and best[0]
