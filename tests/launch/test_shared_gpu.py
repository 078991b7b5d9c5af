"""Ranks that share a GPU: who does, who is refused, and every collective through the host on real ranks.

There is no GPU in these tests. `programs/staged.py` says that the CPU's tensors are those to be staged; what that
leaves unproven stands there, and in tests/gpu/test_shared.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.installed import skip_without
from workshop import launch
from workshop.launch import device
from workshop.launch.gpus import leases
from workshop.launch.gpus.lease_files import FOLDER
from workshop.launch.processes import ProcessId

PROGRAM = Path(__file__).with_name("programs") / "staged.py"


def session(gpus):
    return SimpleNamespace(gpus=gpus, process=ProcessId.of(os.getpid()))


@pytest.mark.parametrize(
    ("n", "gpus", "share", "kind", "shared", "words"),
    [
        (4, 1, True, "cuda", 1, "4 ranks share one GPU, gloo through the host"),
        (4, 2, True, "cuda", 2, "4 ranks share 2 GPUs"),
        (4, 1, False, "cpu", 0, "NCCL needs a GPU for each rank"),
        (2, 2, True, "cuda", 0, "2 ranks on 2 of 2 GPUs, NCCL"),
        (1, 1, True, "cuda", 0, "NCCL"),
        (4, 0, True, "cpu", 0, "4 ranks on CPU, gloo"),
    ],
)
def test_who_shares(n, gpus, share, kind, shared, words):
    chosen = device.choose(n, gpus, share)
    assert (chosen.kind, chosen.shared) == (kind, shared)
    assert words in chosen.sentence
    assert ("not in speed" in chosen.sentence) == bool(shared)
    assert (device.SHARED_GPUS in chosen.environment()) == bool(shared)


@pytest.fixture
def one_gpu(monkeypatch, tmp_path):
    """A node with a GPU that no driver tells about."""
    monkeypatch.setenv(FOLDER, str(tmp_path / "leases"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv(device.SHARE_GPU, raising=False)
    monkeypatch.setattr(device, "node_gpus", list)
    yield monkeypatch
    leases._give_all_back()


def test_the_gpu_is_leased_once_and_the_ranks_are_told(one_gpu):
    shared = device.take(4, session(1), True)
    assert shared.lease.gpus == ("0",)
    assert shared.environment() == {"CUDA_VISIBLE_DEVICES": "0", device.SHARED_GPUS: "1"}
    shared.release()
    assert leases.holders() == []


@pytest.mark.parametrize(("said", "shares"), [("1", True), ("0", False), ("", False)])
def test_the_variable_speaks_where_the_launch_does_not(one_gpu, said, shares):
    one_gpu.setenv(device.SHARE_GPU, said)
    assert bool(device.take(4, session(1)).shared) is shares
    assert device.take(4, session(1), False).kind == "cpu"


def test_without_a_gpu_the_flag_is_refused_and_the_variable_is_not(one_gpu):
    with pytest.raises(ValueError, match=r"--share-gpu: there is no GPU here .* leave the flag out"):
        device.take(4, session(0), True)
    one_gpu.setenv(device.SHARE_GPU, "1")
    assert device.take(4, session(0)).kind == "cpu"
    one_gpu.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ValueError, match="CUDA_VISIBLE_DEVICES hides every GPU"):
        device.take(4, session(1), True)
    with pytest.raises(ValueError, match="GPUs of one node"):
        device.choose_for_nodes(4, [1, 1], True)


@pytest.fixture(scope="module")
def staged():
    """What two ranks saw of every collective; the numbers are those of mine = (0, 1, 2, 3) + 10 rank."""
    return launch.torchrun(launch.Script(PROGRAM), 2, limits=launch.Limits(timeout=200))


BOTH = {
    "backend": "shared-gpu",
    "all_reduce": [10, 12, 14, 16],
    "mean": [5, 6, 7, 8],
    "bf16": [10, 12, 14, 16],
    "broadcast": [10, 11, 12, 13],
    "all_gather": [[0, 1, 2, 3], [10, 11, 12, 13]],
    "all_gather_into_tensor": [0, 1, 2, 3, 10, 11, 12, 13],
    "objects": [{"rank": 0}, {"rank": 1}],
    "sub-group": [10, 12, 14, 16],
    "functional": [[10, 12, 14, 16], [0, 1, 10, 11]],
    "DTensor": [0, 2, 4, 6, 8, 10],
    "ddp": True,
    "fsdp": True,
    "sequence": True,
}
EACH = {
    "reduce": ([10, 12, 14, 16], None),
    "gather": ([[0, 1, 2, 3], [10, 11, 12, 13]], None),
    "scatter": ([0, 1], [2, 3]),
    "reduce_scatter": ([10, 12], [14, 16]),
    "reduce_scatter_tensor": ([5, 6], [7, 8]),
    "functional reduce_scatter": ([10, 12], [14, 16]),
    "all_to_all_single": ([0, 1, 10, 11], [2, 3, 12, 13]),
    "all_to_all": ([0, 10], [1, 2, 11, 12]),
    "exchanged": ([1, 1], [0, 0]),
}


@pytest.mark.parametrize("name", [*BOTH, *EACH])
def test_through_the_host_as_without(staged, name):
    wanted = EACH.get(name) or (BOTH[name], BOTH[name])
    assert tuple(staged[rank]["seen"][name] for rank in (0, 1)) == wanted


def test_a_rank_that_is_sent_to_has_it(staged):
    assert staged[1]["seen"]["received"] == [0, 1, 2, 3]


def test_measure_counts_the_same_through_the_host(monkeypatch):
    """Or every lesson that shows bytes would show none where its ranks share a GPU."""
    program = launch.Script(Path(__file__).with_name("programs") / "staged_traffic.py")
    plain = launch.torchrun(program, 2, limits=launch.Limits(timeout=200))
    monkeypatch.setenv("STAGED", "1")
    staged = launch.torchrun(program, 2, limits=launch.Limits(timeout=200))
    assert (plain[0]["backend"], staged[0]["backend"]) == ("gloo", "shared-gpu")
    for rank in (0, 1):
        assert staged[rank]["rows"] == plain[rank]["rows"]
    names = {row[0] for row in plain[0]["rows"]["calls"]}
    assert names >= {
        "all_reduce",
        "broadcast",
        "reduce",
        "all_gather",
        "gather",
        "scatter",
        "all_to_all",
        "send",
    }
    assert all(plain[0]["rows"].values())


@pytest.mark.parametrize("first", ["know_the_leased_gpus()", "import deepspeed.accelerator.cuda_accelerator"])
def test_deepspeed_names_a_gpu_that_is_there_whenever_it_is_imported(first):
    skip_without("deepspeed")
    program = f"""
import torch
from workshop.launch.child.deepspeed_on_leased_gpus import know_the_leased_gpus
{first}
know_the_leased_gpus()
from deepspeed.accelerator.cuda_accelerator import CUDA_Accelerator
torch.cuda.device_count = lambda: 1
torch.cuda.mem_get_info = lambda device: (7, 11)
print(CUDA_Accelerator.available_memory(None, 0))
print([CUDA_Accelerator.device_name(None, index) for index in (None, 0, 3, "2")])
"""
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100,
        env={**os.environ, "DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": "GPU-53ce3473-78b4"},
    )  # fmt: skip
    assert told.returncode == 0, told.stderr[-2000:]
    names = "['cuda', 'cuda:0', 'cuda:0', 'cuda:0']"
    assert told.stdout.splitlines()[-2:] == ["7", names], told.stderr[-2000:]
