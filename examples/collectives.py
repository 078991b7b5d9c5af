"""What ranks say to one another: broadcast, all_reduce, all_gather, reduce_scatter, all_to_all, send, recv.

    python -m torch.distributed.run --standalone --nproc-per-node 2 collectives.py

Every rank runs this same program. Only `rank` differs, and with it the numbers each one starts from.
"""

import os

import torch
import torch.distributed as dist


def set_up() -> torch.device:
    """Join the group; one GPU for each rank where there are enough, else the CPU."""
    local_rank, local_ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cpu")
    if torch.accelerator.is_available() and torch.accelerator.device_count() >= local_ranks:
        torch.accelerator.set_device_index(local_rank)
        device = torch.device(torch.accelerator.current_accelerator().type, local_rank)
    # NCCL for GPUs, gloo for CPUs: torch knows which library goes with which device.
    dist.init_process_group(dist.get_default_backend_for_device(device))
    return device


def main() -> None:
    device = set_up()
    rank, world_size = dist.get_rank(), dist.get_world_size()

    def say(what: str, tensor: torch.Tensor) -> None:
        print(f"rank {rank} {what}: {tensor.tolist()}")

    # Each rank starts from its own numbers: rank 0 has 0 1, rank 1 has 10 11, and so on.
    mine = torch.arange(world_size, device=device) + 10 * rank
    say("starts with", mine)

    # broadcast: everybody gets what one rank has.
    x = mine.clone()
    dist.broadcast(x, src=0)
    say("after broadcast from rank 0", x)

    # all_reduce: everybody gets the sum. DDP does this with gradients.
    x = mine.clone()
    dist.all_reduce(x)
    say("after all_reduce", x)

    # all_gather: everybody gets everything, one after the other. FSDP does this with weights.
    everything = [torch.empty_like(mine) for _ in range(world_size)]
    dist.all_gather(everything, mine)
    say("after all_gather", torch.cat(everything))

    # reduce_scatter: the sum again, but each rank keeps one piece of it. FSDP does this with gradients.
    piece = torch.empty_like(mine[:1])
    dist.reduce_scatter(piece, list(mine.split(1)))
    say("after reduce_scatter", piece)

    # all_gather(reduce_scatter(x)) is all_reduce(x): the two halves of a ring all-reduce.
    pieces = [torch.empty_like(piece) for _ in range(world_size)]
    dist.all_gather(pieces, piece)
    say("after reduce_scatter and all_gather", torch.cat(pieces))

    # all_to_all: piece i goes to rank i. Expert parallelism sends tokens this way.
    x = torch.empty_like(mine)
    dist.all_to_all_single(x, mine)
    say("after all_to_all", x)

    # send and recv: once around the ring. Both are started before either is waited for; a send that
    # waits for a recv that waits for a send would never end.
    x = torch.empty_like(mine)
    to_the_right = dist.P2POp(dist.isend, mine, (rank + 1) % world_size)
    from_the_left = dist.P2POp(dist.irecv, x, (rank - 1) % world_size)
    for work in dist.batch_isend_irecv([to_the_right, from_the_left]):
        work.wait()
    say("after one step around the ring", x)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
