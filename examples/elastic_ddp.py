"""Data parallel training that survives the death of a rank: a checkpoint each epoch, and a restart.

    python -m torch.distributed.run --standalone --nproc-per-node 2 elastic_ddp.py
    python -m torch.distributed.run --standalone --nproc-per-node 2 --max-restarts 1 elastic_ddp.py --die-at 3

When a rank dies, torchrun ends the others and starts all again. What is not on disk is lost.
"""

import argparse
import gc
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def set_up() -> torch.device:
    """Join the group; one GPU for each rank where there are enough, else the CPU."""
    local_rank, local_ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cpu")
    if torch.accelerator.is_available() and torch.accelerator.device_count() >= local_ranks:
        torch.accelerator.set_device_index(local_rank)
        device = torch.device(torch.accelerator.current_accelerator().type, local_rank)
    backend = dist.get_default_backend_for_device(device)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if attempt == "0":
        dist.init_process_group(backend)
        return device
    # torchrun keeps its store through all attempts, and in it lie the addresses of the dead: use other keys.
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(
        backend, store=dist.PrefixStore(f"attempt-{attempt}", store), rank=rank, world_size=ranks
    )
    return device


def save(path: Path, epoch: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write to a second file first: who dies while writing leaves the old checkpoint whole."""
    partial = path.with_suffix(".part")
    torch.save({"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, partial)
    partial.replace(path)


def train_one_epoch(
    model: nn.Module, optimizer: torch.optim.Optimizer, epoch: int, device: torch.device
) -> float:
    """Eight steps on data of this rank's own; the loss, averaged over all ranks."""
    # The data depends on epoch and rank alone, so that a restarted epoch sees the same numbers again.
    generator = torch.Generator().manual_seed(1000 * epoch + dist.get_rank())
    total = torch.zeros((), device=device)
    for _ in range(8):
        x = torch.randn(16, 8, generator=generator).to(device)
        loss = nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()  # DDP averages the gradients of all ranks in here
        optimizer.step()
        total += loss.detach() / 8
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint", type=Path, default=Path("elastic_ddp.pt"))
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument(
        "--die-at", type=int, help="rank 1 is killed in this epoch, in the first attempt only"
    )
    return parser.parse_args()


def train(args: argparse.Namespace, device: torch.device) -> None:
    """All epochs that no earlier attempt has finished."""
    rank, attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    torch.manual_seed(rank)  # DDP sends rank 0's weights to all, so the ranks may begin differently
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    first = 0
    if attempt > 0 and args.checkpoint.exists():
        state = torch.load(args.checkpoint, map_location=device)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"] + 1
        print(f"attempt {attempt}: goes on at epoch {first}")

    for epoch in range(first, args.epochs):
        if epoch == args.die_at and attempt == 0 and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        loss = train_one_epoch(model, optimizer, epoch, device)
        print(f"epoch {epoch} loss {loss:.4f}")
        if rank == 0:
            save(args.checkpoint, epoch, model, optimizer)
        dist.barrier()  # nobody begins the next epoch before this one is on disk


def main() -> None:
    train(arguments(), set_up())
    gc.collect()  # DDP holds the group, so the model goes first; else a rank can hang here (gloo)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
