"""The packed format gives the matrix back and takes nine sixteenths; the kernel says what it needs."""

import pytest
import torch
from torch import nn

from workshop.compress.prune import magnitude, two_of_four
from workshop.compress.two_four_kernel import pack, unpack, use_sparse_kernels


def test_a_group_by_hand():
    packed = pack(torch.tensor([[0.9, 0.0, 0.0, -0.4, 0.0, 0.2, 0.3, 0.0]]))
    assert torch.equal(packed.values, torch.tensor([[0.9, -0.4, 0.2, 0.3]]))
    assert packed.places.tolist() == [[0b10_01_11_00]]  # 0 and 3, 1 and 2, the first lowest


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_there_and_back_also_with_more_zeros(dtype):
    torch.manual_seed(0)
    weight = torch.randn(16, 64).to(dtype)
    weight *= two_of_four(magnitude(weight))
    weight[weight.abs() < 0.3] = 0
    weight[3] = 0
    assert torch.equal(unpack(pack(weight)), weight)


def test_nine_sixteenths_of_the_bytes_in_16_bits():
    weight = torch.randn(128, 256).bfloat16()
    weight *= two_of_four(magnitude(weight))
    assert pack(weight).nbytes == weight.nbytes * 9 // 16


def test_errors_say_what_to_do():
    with pytest.raises(ValueError, match="more than two nonzero"):
        pack(torch.ones(2, 8))
    with pytest.raises(ValueError, match="take 8 n"):
        pack(torch.zeros(2, 12))
    with pytest.raises(ValueError, match="only CUDA has kernels"):
        use_sparse_kernels(nn.Sequential(nn.Linear(8, 8)))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="sparse tensor cores are a GPU's")
def test_the_kernel_gives_the_dense_outputs():
    model = nn.Sequential(nn.Linear(256, 256, bias=False)).cuda().half()
    model[0].weight.data *= two_of_four(magnitude(model[0].weight))
    x = torch.randn(128, 256, device="cuda", dtype=torch.float16)
    with torch.no_grad():
        wanted = model(x)
        found = use_sparse_kernels(model)(x)
    torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-2)
