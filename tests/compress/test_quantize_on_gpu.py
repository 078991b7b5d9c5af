"""What quantization makes for itself (bits, a unit matrix) lies where the weights lie: on fake tensors of a GPU."""

from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from workshop.compress import quantize_library
from workshop.compress.quantize import Grid, round_to_nearest
from workshop.compress.quantize_gptq import column_by_column, gptq
from workshop.compress.quantize_packed import PackedLinear, pack, unpack
from workshop.compress.quantize_training import RoundedLinear
from workshop.rehearse.fakemode import told_to_cpp


class OfAGpu(FakeTensorMode):
    """Tensors that have a shape and a GPU, and no numbers: where Python asks for one, it reads 0.

    Tensors on two devices are refused, as a GPU would refuse them.
    """

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.prim.device.default:
            return told_to_cpp(args[0])
        if func is torch.ops.aten._local_scalar_dense.default:
            return 0
        return super().__torch_dispatch__(func, types, args, kwargs or {})


@contextmanager
def fake_gpu():
    with OfAGpu(), torch.no_grad():
        yield torch.device("cuda:0")


def test_a_second_device_is_refused():
    with fake_gpu() as device, pytest.raises(RuntimeError, match="device"):
        torch.zeros(2, device=device) + torch.zeros(2)


@pytest.mark.parametrize("bits", range(2, 9))
def test_bits(bits):
    with fake_gpu() as device:
        packed = pack(torch.zeros((5, 48), dtype=torch.uint8, device=device), bits)
        assert packed.device == unpack(packed, bits).device == device


@pytest.mark.parametrize("grid", [Grid(3, 16), Grid(4, 16, symmetric=False), Grid(8, None, symmetric=False)])
def test_a_packed_layer(grid):
    with fake_gpu() as device:
        packed = PackedLinear(round_to_nearest(torch.zeros((10, 48), device=device), grid))
        assert {held.device for held in packed.buffers()} == {device}
        assert packed(torch.zeros((3, 48), device=device)).device == device


def test_a_layer_that_was_trained_rounded():
    with fake_gpu() as device:
        linear = nn.Linear(48, 10, device=device)
        assert RoundedLinear.of(linear, Grid(3, 16)).finish().packed.device == device


@pytest.mark.parametrize("method", [column_by_column, gptq])
def test_gptq(method):
    with fake_gpu() as device:
        weight, hessian = torch.zeros((10, 48), device=device), torch.zeros((48, 48), device=device)
        assert method(weight, hessian, Grid(4, 16)).codes.device == device


def test_what_modelopt_made_of_a_layer_is_read_where_the_layer_lies(monkeypatch):
    monkeypatch.setattr(quantize_library, "_modelopt", lambda *args: None)  # reading alone, library or not
    monkeypatch.setattr(
        quantize_library.copy, "deepcopy", lambda layer: layer
    )  # a copy would bring its own mode
    with fake_gpu() as device:
        linear, inputs = nn.Linear(48, 10, device=device), torch.zeros((3, 48), device=device)
        read = quantize_library.modelopt_linear(linear, "gptq", Grid(4, 16), inputs)
        assert read.device == device
        assert read.shape == (10, 48)
