"""What `engine.cpu_tensors` says of a GPU, tried on one."""

import pytest
import torch

from tests.exercises.engine.device_samples import FAIL, RUN


@pytest.mark.parametrize("function", FAIL, ids=lambda one: one.__name__)
def test_a_gpu_refuses_it(function):
    with pytest.raises((RuntimeError, TypeError), match=r"device|cpu|numpy"):
        function(torch.tensor([1.0, 2.0, 3.0], device="cuda"))


@pytest.mark.parametrize("function", RUN, ids=lambda one: one.__name__)
def test_a_gpu_runs_it(function):
    assert function(torch.tensor([1.0, 2.0, 3.0], device="cuda")).device.type == "cuda"
