# %% other: one_by_one
import torch
import torch.distributed as dist


def merge(out, lse, part, part_lse):
    """Two sets of keys as one: the output, (queries, head_dim), and lse, (queries,)."""
    both = torch.logaddexp(lse, part_lse)
    mine, theirs = (lse - both).exp(), (part_lse - both).exp()
    return out * mine.unsqueeze(-1) + part * theirs.unsqueeze(-1), both


def rotate_the_ring(query, key, value, attend):
    """Causal attention of this rank's queries over the keys of all ranks."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    out, lse = attend(query, key, value, causal=True)  # its own keys: the block on the diagonal
    block = torch.stack((key, value))
    for step in range(1, world_size):
        arriving = torch.empty_like(block)
        sending = dist.isend(block, (rank + 1) % world_size)
        dist.recv(arriving, (rank - 1) % world_size)
        sending.wait()
        block = arriving
        owner = (rank - step) % world_size
        if owner < rank:  # later keys are not for us
            out, lse = merge(out, lse, *attend(query, block[0], block[1], causal=False))
    return out


# %% other: shifts_by_the_larger
import torch
import torch.distributed as dist


def merge(out, lse, part, part_lse):
    """Two sets of keys as one: the output, (queries, head_dim), and lse, (queries,)."""
    larger = torch.maximum(lse, part_lse)  # no exponential is above 1
    mine, theirs = (lse - larger).exp(), (part_lse - larger).exp()
    both = mine + theirs
    return (out * mine.unsqueeze(-1) + part * theirs.unsqueeze(-1)) / both.unsqueeze(-1), larger + both.log()


def rotate_the_ring(query, key, value, attend):
    """Causal attention of this rank's queries over the keys of all ranks."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    out, lse = attend(query, key, value, causal=True)  # its own keys: the block on the diagonal
    block = torch.stack((key, value))
    for step in range(1, world_size):
        arriving = torch.empty_like(block)
        to_right = dist.P2POp(dist.isend, block, (rank + 1) % world_size)
        from_left = dist.P2POp(dist.irecv, arriving, (rank - 1) % world_size)
        for message in dist.batch_isend_irecv([to_right, from_left]):
            message.wait()
        block = arriving
        owner = (rank - step) % world_size
        if owner < rank:  # later keys are not for us
            out, lse = merge(out, lse, *attend(query, block[0], block[1], causal=False))
    return out


# %% wrong: adds_the_parts
# message: plain sum of the parts
import torch
import torch.distributed as dist


def merge(out, lse, part, part_lse):
    """Two sets of keys as one: the output, (queries, head_dim), and lse, (queries,)."""
    return out + part, torch.logaddexp(lse, part_lse)


def rotate_the_ring(query, key, value, attend):
    """Causal attention of this rank's queries over the keys of all ranks."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    out, lse = attend(query, key, value, causal=True)  # its own keys: the block on the diagonal
    block = torch.stack((key, value))
    for step in range(1, world_size):
        arriving = torch.empty_like(block)
        sending = dist.isend(block, (rank + 1) % world_size)
        dist.recv(arriving, (rank - 1) % world_size)
        sending.wait()
        block = arriving
        owner = (rank - step) % world_size
        if owner < rank:  # later keys are not for us
            out, lse = merge(out, lse, *attend(query, block[0], block[1], causal=False))
    return out


# %% wrong: the_mean_of_the_parts
# message: plain mean of the parts
import torch
import torch.distributed as dist


def merge(out, lse, part, part_lse):
    """Two sets of keys as one: the output, (queries, head_dim), and lse, (queries,)."""
    return (out + part) / 2, torch.logaddexp(lse, part_lse)


def rotate_the_ring(query, key, value, attend):
    """Causal attention of this rank's queries over the keys of all ranks."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    out, lse = attend(query, key, value, causal=True)  # its own keys: the block on the diagonal
    block = torch.stack((key, value))
    for step in range(1, world_size):
        arriving = torch.empty_like(block)
        sending = dist.isend(block, (rank + 1) % world_size)
        dist.recv(arriving, (rank - 1) % world_size)
        sending.wait()
        block = arriving
        owner = (rank - step) % world_size
        if owner < rank:  # later keys are not for us
            out, lse = merge(out, lse, *attend(query, block[0], block[1], causal=False))
    return out


# %% wrong: forgets_the_new_lse
# message: `lse` stayed as it was
import torch
import torch.distributed as dist


def merge(out, lse, part, part_lse):
    """Two sets of keys as one: the output, (queries, head_dim), and lse, (queries,)."""
    both = torch.logaddexp(lse, part_lse)
    mine, theirs = (lse - both).exp(), (part_lse - both).exp()
    return out * mine.unsqueeze(-1) + part * theirs.unsqueeze(-1), lse


def rotate_the_ring(query, key, value, attend):
    """Causal attention of this rank's queries over the keys of all ranks."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    out, lse = attend(query, key, value, causal=True)  # its own keys: the block on the diagonal
    block = torch.stack((key, value))
    for step in range(1, world_size):
        arriving = torch.empty_like(block)
        sending = dist.isend(block, (rank + 1) % world_size)
        dist.recv(arriving, (rank - 1) % world_size)
        sending.wait()
        block = arriving
        owner = (rank - step) % world_size
        if owner < rank:  # later keys are not for us
            out, lse = merge(out, lse, *attend(query, block[0], block[1], causal=False))
    return out


# %% wrong: never_merges
# message: own keys alone
import torch
import torch.distributed as dist


def merge(out, lse, part, part_lse):
    """Two sets of keys as one: the output, (queries, head_dim), and lse, (queries,)."""
    return out, lse


def rotate_the_ring(query, key, value, attend):
    """Causal attention of this rank's queries over the keys of all ranks."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    out, lse = attend(query, key, value, causal=True)  # its own keys: the block on the diagonal
    block = torch.stack((key, value))
    for step in range(1, world_size):
        arriving = torch.empty_like(block)
        sending = dist.isend(block, (rank + 1) % world_size)
        dist.recv(arriving, (rank - 1) % world_size)
        sending.wait()
        block = arriving
        owner = (rank - step) % world_size
        if owner < rank:  # later keys are not for us
            out, lse = merge(out, lse, *attend(query, block[0], block[1], causal=False))
    return out


# %% wrong: sends_to_the_left
# message: `owner` is not the rank whose keys are here
import torch
import torch.distributed as dist


def merge(out, lse, part, part_lse):
    """Two sets of keys as one: the output, (queries, head_dim), and lse, (queries,)."""
    both = torch.logaddexp(lse, part_lse)
    mine, theirs = (lse - both).exp(), (part_lse - both).exp()
    return out * mine.unsqueeze(-1) + part * theirs.unsqueeze(-1), both


def rotate_the_ring(query, key, value, attend):
    """Causal attention of this rank's queries over the keys of all ranks."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    out, lse = attend(query, key, value, causal=True)  # its own keys: the block on the diagonal
    block = torch.stack((key, value))
    for step in range(1, world_size):
        arriving = torch.empty_like(block)
        sending = dist.isend(block, (rank - 1) % world_size)
        dist.recv(arriving, (rank + 1) % world_size)
        sending.wait()
        block = arriving
        owner = (rank - step) % world_size
        if owner < rank:  # later keys are not for us
            out, lse = merge(out, lse, *attend(query, block[0], block[1], causal=False))
    return out


# %% wrong: masks_the_wrong_blocks
# message: so the wrong blocks are masked
import torch
import torch.distributed as dist


def merge(out, lse, part, part_lse):
    """Two sets of keys as one: the output, (queries, head_dim), and lse, (queries,)."""
    both = torch.logaddexp(lse, part_lse)
    mine, theirs = (lse - both).exp(), (part_lse - both).exp()
    return out * mine.unsqueeze(-1) + part * theirs.unsqueeze(-1), both


def rotate_the_ring(query, key, value, attend):
    """Causal attention of this rank's queries over the keys of all ranks."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    out, lse = attend(query, key, value, causal=True)  # its own keys: the block on the diagonal
    block = torch.stack((key, value))
    for step in range(1, world_size):
        arriving = torch.empty_like(block)
        sending = dist.isend(block, (rank + 1) % world_size)
        dist.recv(arriving, (rank - 1) % world_size)
        sending.wait()
        block = arriving
        owner = (rank + step) % world_size
        if owner < rank:  # later keys are not for us
            out, lse = merge(out, lse, *attend(query, block[0], block[1], causal=False))
    return out


# %% wrong: masks_no_block
# message: sees later keys too
import torch
import torch.distributed as dist


def merge(out, lse, part, part_lse):
    """Two sets of keys as one: the output, (queries, head_dim), and lse, (queries,)."""
    both = torch.logaddexp(lse, part_lse)
    mine, theirs = (lse - both).exp(), (part_lse - both).exp()
    return out * mine.unsqueeze(-1) + part * theirs.unsqueeze(-1), both


def rotate_the_ring(query, key, value, attend):
    """Causal attention of this rank's queries over the keys of all ranks."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    out, lse = attend(query, key, value, causal=True)  # its own keys: the block on the diagonal
    block = torch.stack((key, value))
    for _ in range(1, world_size):
        arriving = torch.empty_like(block)
        sending = dist.isend(block, (rank + 1) % world_size)
        dist.recv(arriving, (rank - 1) % world_size)
        sending.wait()
        block = arriving
        out, lse = merge(out, lse, *attend(query, block[0], block[1], causal=False))
    return out


# %% wrong: shifts_no_exponential
# message: then e^lse overflows
import torch
import torch.distributed as dist


def merge(out, lse, part, part_lse):
    """Two sets of keys as one: the output, (queries, head_dim), and lse, (queries,)."""
    mine, theirs = lse.exp(), part_lse.exp()
    both = mine + theirs
    return (out * mine.unsqueeze(-1) + part * theirs.unsqueeze(-1)) / both.unsqueeze(-1), both.log()


def rotate_the_ring(query, key, value, attend):
    """Causal attention of this rank's queries over the keys of all ranks."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    out, lse = attend(query, key, value, causal=True)  # its own keys: the block on the diagonal
    block = torch.stack((key, value))
    for step in range(1, world_size):
        arriving = torch.empty_like(block)
        sending = dist.isend(block, (rank + 1) % world_size)
        dist.recv(arriving, (rank - 1) % world_size)
        sending.wait()
        block = arriving
        owner = (rank - step) % world_size
        if owner < rank:  # later keys are not for us
            out, lse = merge(out, lse, *attend(query, block[0], block[1], causal=False))
    return out


# %% wrong: one_hop_more
# message: sent 768 bytes; wanted 576: N - 1 times
import torch
import torch.distributed as dist


def merge(out, lse, part, part_lse):
    """Two sets of keys as one: the output, (queries, head_dim), and lse, (queries,)."""
    both = torch.logaddexp(lse, part_lse)
    mine, theirs = (lse - both).exp(), (part_lse - both).exp()
    return out * mine.unsqueeze(-1) + part * theirs.unsqueeze(-1), both


def rotate_the_ring(query, key, value, attend):
    """Causal attention of this rank's queries over the keys of all ranks."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    out, lse = attend(query, key, value, causal=True)  # its own keys: the block on the diagonal
    block = torch.stack((key, value))
    for step in range(1, world_size + 1):
        arriving = torch.empty_like(block)
        sending = dist.isend(block, (rank + 1) % world_size)
        dist.recv(arriving, (rank - 1) % world_size)
        sending.wait()
        block = arriving
        owner = (rank - step) % world_size
        if owner < rank:  # later keys are not for us
            out, lse = merge(out, lse, *attend(query, block[0], block[1], causal=False))
    return out
