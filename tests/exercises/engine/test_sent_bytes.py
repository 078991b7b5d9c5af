"""Bytes are counted on real ranks, whichever function sends them and however it was imported."""

import pytest

from workshop import launch

PROGRAM = """
import torch
import torch.distributed as dist
from torch.distributed import isend as imported_isend

from workshop import report
from workshop.exercises.engine.sent_bytes import counted

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
right, left = (rank + 1) % world_size, (rank - 1) % world_size
tensor, got = torch.full((10,), float(rank)), torch.empty(10)


def isend():
    work = imported_isend(tensor, right)
    dist.recv(got, left)
    work.wait()


def batch():
    swap = [dist.P2POp(dist.isend, tensor, right), dist.P2POp(dist.irecv, got, left)]
    for work in dist.batch_isend_irecv(swap):
        work.wait()


def send():
    if rank % 2:
        dist.recv(got, left)
        dist.send(tensor.double(), right)
    else:
        dist.send(tensor, right)
        dist.recv(torch.empty(10, dtype=torch.float64), left)


def all_gather():
    dist.all_gather([torch.empty(10) for _ in range(world_size)], tensor)


def all_gather_into():
    into = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    into(torch.empty(10 * world_size), tensor)


def all_reduce():
    dist.all_reduce(tensor.clone())
    dist.all_reduce(tensor.clone())


def reduce_scatter():
    dist.reduce_scatter(torch.empty(5), list(torch.ones(world_size, 5)))


def broadcast():
    dist.broadcast(tensor.clone(), 0)


def all_to_all():
    dist.all_to_all_single(torch.empty(10), tensor)


calls = [isend, batch, send, all_gather, all_gather_into, all_reduce, reduce_scatter, broadcast, all_to_all]
seen = {}
for function in calls:
    with counted() as counter:
        function()
    seen[function.__name__] = dict(counter)
with counted() as counter:
    pass
isend()
report(seen=seen, outside=dict(counter), received=got)
"""


@pytest.fixture(scope="module")
def result():
    return launch.torchrun(PROGRAM, 2, limits=launch.Limits(timeout=60.0))


@pytest.mark.parametrize(
    ("call", "counted"),
    [
        ("isend", {"bytes": 40}),
        ("batch", {"bytes": 40}),
        ("all_gather", {"bytes": 40}),  # to the one other rank
        ("all_gather_into", {"bytes": 40}),
        ("all_reduce", {"all_reduce": 2}),
        ("reduce_scatter", {"reduce_scatter": 1}),
        ("broadcast", {"broadcast": 1}),
        ("all_to_all", {"all_to_all": 1}),
    ],
)
def test_counted(result, call, counted):
    assert [result[rank]["seen"][call] for rank in range(2)] == [counted, counted]


def test_each_rank_counts_its_own(result):
    assert [result[rank]["seen"]["send"] for rank in range(2)] == [{"bytes": 40}, {"bytes": 80}]


def test_outside_nothing_is_counted_and_everything_works(result):
    for rank in range(2):
        assert result[rank]["outside"] == {}
        assert result[rank]["received"].tolist() == [float(1 - rank)] * 10
