"""A launch on GPUs: the lease, the sentence, NCCL, the cap and its message, NVML, training as lessons start it."""

import os

import pytest
import torch

from workshop import Layout, Run, launch, train
from workshop.launch import RankFailed, Ranks, device
from workshop.launch.gpus import leases, nvml

ONE = """
import torch, torch.distributed as dist
from workshop import report
dist.init_process_group()
x = torch.ones(8, device="cuda")
dist.all_reduce(x)
report(backend=str(dist.get_backend_config()), total=float(x.sum()), index=torch.cuda.current_device(),
       visible=torch.cuda.device_count())
dist.destroy_process_group()
"""


def test_nvml_tells_what_torch_tells():
    known = nvml.node_gpus()
    assert known
    assert torch.cuda.get_device_name(0) in {gpu.name for gpu in known}
    assert all(gpu.uuid.startswith("GPU-") for gpu in known)


def test_one_rank_has_a_gpu_of_its_own_and_nccl():
    told = launch.torchrun(ONE, 1, limits=launch.Limits(timeout=100))
    assert told.device.startswith("1 rank on 1 of ")
    assert dict(told[0]).keys() == {"backend", "total", "index", "visible"}
    assert "cuda:nccl" in told[0]["backend"]
    assert (told[0]["total"], told[0]["index"], told[0]["visible"]) == (8.0, 0, 1)
    assert leases.holders() == []


def test_more_ranks_than_gpus_go_to_the_cpu_and_say_why():
    n = torch.cuda.device_count() + 1
    told = launch.torchrun("import torch\nprint(torch.cuda.is_available())", n)
    assert "NCCL needs a GPU for each rank" in told.device
    assert "False" in told.text


def test_ranks_that_stay_keep_tensors_on_the_gpu():
    ranks = Ranks(1)
    try:
        assert "cuda" in ranks.run("x = torch.ones(2, device=device) * 3; print(x.device)").text
        assert "6" in ranks.run("print(float(x.sum()))").text
        with pytest.raises(RankFailed):
            ranks.run("raise ValueError('as asked')")
        assert "6" in ranks.run("print(float(x.sum()))").text
    finally:
        ranks.stop()


def test_a_cap_ends_in_a_message_with_torchs_numbers():
    cell = "import torch\nheld = torch.empty(2**27, dtype=torch.uint8, device='cuda')\n"
    cell += "more = torch.empty(2**28, dtype=torch.uint8, device='cuda')\n"
    with pytest.raises(RankFailed) as caught:
        launch.torchrun(cell, 1, limits=launch.Limits(timeout=100, device_memory="256MiB"))
    assert caught.value.failures[0].error_type == "OutOfMemoryError"
    assert "256.00 MiB" in str(caught.value)


def test_a_lease_is_by_uuid_and_a_second_notebook_is_told_who_has_it():
    names = [gpu.uuid for gpu in nvml.node_gpus()]
    lease = leases.take(len(names), names)
    assert lease.gpus == tuple(names)
    told = [holder.gpu for holder in leases.holders()]
    assert sorted(told) == sorted(names)
    lease.release()
    assert leases.holders() == []


def test_a_foreign_process_on_the_gpu_is_said():
    held = torch.ones(8, device="cuda")  # this very process computes on it
    session = launch.Session.get()
    session.wait_ready()
    taken = device.take(1, session)
    if os.getpid() not in {pid for gpu in nvml.node_gpus() for pid in gpu.processes}:
        taken.release()
        pytest.skip("NVML tells no processes here (containers hide them)")
    assert "also runs process" in taken.sentence
    taken.release()
    del held


@pytest.mark.parametrize("precision", ["fp32", "amp-bf16", "amp-fp16", "bf16"])
def test_training_on_one_gpu(precision):
    run = Run("gpt-1m", "this-machine", Layout(precision=precision), micro_batch=4, seq_len=64)
    found = train(run, num_steps=4, limits=launch.Limits(timeout=150))
    assert "NCCL" in found.device
    assert found.losses[-1] < found.losses[0]
    assert found.allocated_bytes > 0


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_the_same_losses_with_and_without_recompute(recompute):
    run = Run(
        "gpt-1m", "this-machine", Layout(precision="fp32", recompute=recompute), micro_batch=4, seq_len=64
    )
    found = train(run, num_steps=3, measured=False, limits=launch.Limits(timeout=150))
    assert found.losses[-1] < found.losses[0]


def test_a_resumed_run_has_the_gpus_random_numbers_too(tmp_path):
    from workshop.train.checkpoint import _random_state, _restore_random_state

    state = _random_state()
    wanted = torch.rand(4, device="cuda")
    torch.rand(100, device="cuda")
    _restore_random_state(state)
    assert torch.equal(torch.rand(4, device="cuda"), wanted)


def test_the_monitor_sees_the_gpu_at_work():
    from workshop.measure.monitor import Monitor

    a = torch.randn(4096, 4096, device="cuda")
    with Monitor(0.1) as monitor:
        for _ in range(200):
            a @ a
        torch.cuda.synchronize()
    assert monitor.samples
    assert any(sample.gpus for sample in monitor.samples)


def test_the_doctor_knows_this_gpu():
    import subprocess
    import sys

    told = subprocess.run(
        [sys.executable, "-m", "workshop", "doctor"], capture_output=True, text=True, timeout=110
    )
    assert torch.cuda.get_device_name(0) in told.stdout


BUCKETS = """
import time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from workshop import report
dist.init_process_group()
width = 2048
layers = [torch.nn.Linear(width, width, device="cuda") for _ in range(8)]
model = DistributedDataParallel(torch.nn.Sequential(*layers), gradient_as_bucket_view=True)
x = torch.randn(4, width, device="cuda")
for step in range(2):
    model.zero_grad()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    model(x)
    report(**{f"new {step}": torch.cuda.memory_allocated() - before})
    model(x).square().mean().backward()
    torch.cuda.synchronize()
    time.sleep(WAIT)
report(weights=8 * 4 * (width * width + width))
dist.destroy_process_group()
"""


def test_nccl_lets_go_of_old_buckets_once_its_watchdog_has_seen_them_arrive():
    """Lesson 23 waits for it: DDP makes new buckets at its second step, and the old ones may still be held."""
    told = launch.torchrun(BUCKETS.replace("WAIT", "0.5"), 1, limits=launch.Limits(timeout=100))[0]
    assert told["new 1"] - told["new 0"] < 0.2 * told["weights"]
