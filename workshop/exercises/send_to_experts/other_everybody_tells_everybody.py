import torch
import torch.distributed as dist


def send_to_experts(rows, expert, num_experts):
    """What came for the experts here: rows, and how many from each rank for each."""
    ranks = dist.get_world_size()
    here = num_experts // ranks  # rank 0 has the first experts, and so on
    rows = rows[expert.argsort(stable=True)]  # by expert, and so by rank
    sent = torch.tensor([int((expert == e).sum()) for e in range(num_experts)])
    everybody = [torch.empty_like(sent) for _ in range(ranks)]
    dist.all_gather(everybody, sent)
    own = slice(dist.get_rank() * here, (dist.get_rank() + 1) * here)
    came = torch.cat([counts[own] for counts in everybody])
    to_ranks = [int(part.sum()) for part in sent.chunk(ranks)]
    from_ranks = [int(counts[own].sum()) for counts in everybody]
    arrived = rows.new_empty(sum(from_ranks), rows.shape[1])
    dist.all_to_all_single(arrived, rows, from_ranks, to_ranks)
    return arrived, came
