import torch
import torch.distributed as dist


def send_to_experts(rows, expert, num_experts):
    """What came for the experts here: rows, and how many from each rank for each."""
    ranks = dist.get_world_size()
    here = num_experts // ranks  # rank 0 has the first experts, and so on
    rows = rows[expert.argsort(stable=True)]  # by expert, and so by rank
    sent = expert.bincount(minlength=num_experts)
    came = torch.empty_like(sent)
    dist.all_to_all_single(came, sent)
    to_ranks = sent.view(here, ranks).sum(0).tolist()
    from_ranks = came.view(here, ranks).sum(0).tolist()
    arrived = rows.new_empty(sum(from_ranks), rows.shape[1])
    dist.all_to_all_single(arrived, rows, from_ranks, to_ranks)
    return arrived, came
