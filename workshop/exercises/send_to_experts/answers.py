# %% other: everybody_tells_everybody
import torch
import torch.distributed as dist


def send_to_experts(rows, expert, num_experts):
    """What came for the experts here: rows, and how many from each rank for each."""
    ranks = dist.get_world_size()
    here = num_experts // ranks  # rank 0 has the first experts, and so on
    rows = rows[expert.argsort(stable=True)]  # by expert, and so by rank
    sent = torch.tensor([int((expert == e).sum()) for e in range(num_experts)], device=rows.device)
    everybody = [torch.empty_like(sent) for _ in range(ranks)]
    dist.all_gather(everybody, sent)
    own = slice(dist.get_rank() * here, (dist.get_rank() + 1) * here)
    came = torch.cat([counts[own] for counts in everybody])
    to_ranks = [int(part.sum()) for part in sent.chunk(ranks)]
    from_ranks = [int(counts[own].sum()) for counts in everybody]
    arrived = rows.new_empty(sum(from_ranks), rows.shape[1])
    dist.all_to_all_single(arrived, rows, from_ranks, to_ranks)
    return arrived, came


# %% wrong: never_asks
# message: No rank knows what the others will send
import torch.distributed as dist


def send_to_experts(rows, expert, num_experts):
    """What came for the experts here: rows, and how many from each rank for each."""
    ranks = dist.get_world_size()
    here = num_experts // ranks  # rank 0 has the first experts, and so on
    rows = rows[expert.argsort(stable=True)]  # by expert, and so by rank
    sent = expert.bincount(minlength=num_experts)
    came = sent
    to_ranks = sent.view(ranks, here).sum(1).tolist()
    from_ranks = came.view(ranks, here).sum(1).tolist()
    arrived = rows.new_empty(sum(from_ranks), rows.shape[1])
    dist.all_to_all_single(arrived, rows, from_ranks, to_ranks)
    return arrived, came


# %% wrong: swaps_the_lists
# message: The two lists are swapped
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
    to_ranks = came.view(ranks, here).sum(1).tolist()
    from_ranks = sent.view(ranks, here).sum(1).tolist()
    arrived = rows.new_empty(sum(from_ranks), rows.shape[1])
    dist.all_to_all_single(arrived, rows, from_ranks, to_ranks)
    return arrived, came


# %% wrong: sums_over_ranks
# message: 2 numbers; wanted one for each of 4 ranks
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
    to_ranks = sent.view(ranks, here).sum(0).tolist()
    from_ranks = came.view(ranks, here).sum(0).tolist()
    arrived = rows.new_empty(sum(from_ranks), rows.shape[1])
    dist.all_to_all_single(arrived, rows, from_ranks, to_ranks)
    return arrived, came


# %% wrong: deals_in_turn
# message: expert e is on rank e // here
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


# %% wrong: adds_up_the_counts
# message: all ranks together
import torch.distributed as dist


def send_to_experts(rows, expert, num_experts):
    """What came for the experts here: rows, and how many from each rank for each."""
    ranks = dist.get_world_size()
    here = num_experts // ranks  # rank 0 has the first experts, and so on
    rows = rows[expert.argsort(stable=True)]  # by expert, and so by rank
    sent = expert.bincount(minlength=num_experts)
    came = sent.clone()
    dist.all_reduce(came)
    to_ranks = sent.view(ranks, here).sum(1).tolist()
    from_ranks = came.view(ranks, here).sum(1).tolist()
    arrived = rows.new_empty(sum(from_ranks), rows.shape[1])
    dist.all_to_all_single(arrived, rows, from_ranks, to_ranks)
    return arrived, came


# %% wrong: counts_too_few
# message: also for experts that nobody wants
import torch
import torch.distributed as dist


def send_to_experts(rows, expert, num_experts):
    """What came for the experts here: rows, and how many from each rank for each."""
    ranks = dist.get_world_size()
    here = num_experts // ranks  # rank 0 has the first experts, and so on
    rows = rows[expert.argsort(stable=True)]  # by expert, and so by rank
    sent = expert.bincount()
    came = torch.empty_like(sent)
    dist.all_to_all_single(came, sent)
    to_ranks = sent.view(ranks, here).sum(1).tolist()
    from_ranks = came.view(ranks, here).sum(1).tolist()
    arrived = rows.new_empty(sum(from_ranks), rows.shape[1])
    dist.all_to_all_single(arrived, rows, from_ranks, to_ranks)
    return arrived, came
