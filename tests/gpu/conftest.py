"""Tests that need a GPU, skipped with that reason where there is none.

On an H200 with torch 2.11, on 2026-11-27, 122 passed and 1 failed beside other work (`data/measurements/gpu/around.json`):
DeepSpeed read a lease's UUID as a number. That is mended, and lesson 24 has run the same stages there since. A GPU's memory
is empty before each, and capped for none.
"""

import gc
import sys

import pytest

WHY = "needs an NVIDIA GPU that torch can use"


def pytest_collection_modifyitems(items):
    ours = [item for item in items if "tests/gpu/" in item.nodeid]
    for item in ours:
        item.add_marker(pytest.mark.gpu)
    import torch

    if ours and not torch.cuda.is_available():
        for item in ours:
            item.add_marker(pytest.mark.skip(reason=WHY))


@pytest.fixture(autouse=True, scope="module")
def engines_of_their_own():
    """An engine is else a fork of a Python that has imported much, and one question to CUDA would poison it."""
    import torch

    if not torch.cuda.is_available():
        yield
        return
    from tests.warm_engines import new_pythons

    with new_pythons():
        yield


@pytest.fixture(autouse=True)
def own_leases(tmp_path, monkeypatch):
    """Several workers launch at once, and a lease is for one notebook: theirs lie in folders of their own."""
    from workshop.launch import device
    from workshop.launch.gpus import lease_files, leases

    monkeypatch.setenv(lease_files.FOLDER, str(tmp_path / "leases"))
    monkeypatch.delenv(device.SHARE_GPU, raising=False)
    yield
    leases._give_all_back()


@pytest.fixture(autouse=True)
def empty_gpu():
    import torch

    if torch.cuda.is_available():
        empty()
        torch.manual_seed(0)
    yield
    gc.collect()


def empty():
    """Nothing is left on the GPU, cuBLAS's workspaces of an earlier test's products included, and nothing caps it."""
    import torch

    torch.cuda.set_per_process_memory_fraction(1.0)
    # pytest leaves the last failure here, and with it all that its test had made
    for name in ("last_exc", "last_type", "last_value", "last_traceback"):
        vars(sys).pop(name, None)
    gc.collect()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
