"""A hang ends within the group's limit, names the line, and leaves other errors alone."""

import pytest

from workshop import launch

PROGRAM = """
import time
import torch
import torch.distributed as dist
from workshop import report
from workshop.exercises.engine import group

group.HANG_SECONDS = 3.0


def one_sided(tensor):
    if dist.get_rank() == 0:
        dist.recv(tensor, 1)


@torch.no_grad()
def all_receive(tensor):
    dist.recv(tensor, 1 - dist.get_rank())


group.join()
agreed = group.all_say(True), group.all_say(dist.get_rank() == 0)
assert group.line_of_wait(dist.barrier) is None
try:
    group.line_of_wait(torch.ones(2).dot, torch.ones(3))
except RuntimeError as error:
    other = str(error)
began = time.monotonic()
line = group.line_of_wait({function}, torch.empty(1))
still = line is None and group.all_say(True)
report(line=line, still=still, agreed=agreed, other=other, seconds=time.monotonic() - began)
"""


def run(function):
    return launch.torchrun(PROGRAM.format(function=function), 2, limits=launch.Limits(timeout=60.0))


@pytest.fixture(scope="module")
def all_wait():
    return run("all_receive")


def test_all_wait(all_wait):
    line = next(
        number for number, text in enumerate(PROGRAM.splitlines(), 2) if "1 - dist.get_rank()" in text
    )
    for rank in range(2):
        assert all_wait[rank]["line"] == line
        assert not all_wait[rank]["still"]
        assert all_wait[rank]["seconds"] < 20


def test_one_waits_and_the_other_hears_of_it():
    result = run("one_sided")
    assert (result[0]["line"] is None, result[1]["line"] is None) == (False, True)
    assert not result[1]["still"]


def test_all_must_say_so(all_wait):
    assert all(all_wait[rank]["agreed"] == (True, False) for rank in range(2))


def test_another_error_is_not_a_hang(all_wait):
    assert "inconsistent tensor size" in all_wait[0]["other"]
