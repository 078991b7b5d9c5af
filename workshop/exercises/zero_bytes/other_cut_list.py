def zero_bytes(num_parameters, ranks, stage, optimizer_bytes=12):
    cut = [optimizer_bytes, 2, 2]  # in the order in which the stages cut them
    return num_parameters * (sum(cut[:stage]) / ranks + sum(cut[stage:]))
