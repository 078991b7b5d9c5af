"""What an operator costs, by shapes alone: the formulas that torch does not have, or has not in all versions."""

import pytest
import torch

from workshop.measure import flops

ATEN = torch.ops.aten
KERNELS = ("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention")


def meta(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta")


@pytest.mark.parametrize("kernel", KERNELS)
def test_heads_that_share_keys_do_their_own_products(kernel):
    """Forward q k^T and its use; backward q k^T again and four more. Torch's own formula refuses this before 2.12."""
    query, key, value, out = meta(2, 8, 16, 32), meta(2, 2, 24, 32), meta(2, 2, 24, 48), meta(2, 8, 16, 48)
    forward = getattr(ATEN, f"_scaled_dot_product_{kernel}").default
    backward = getattr(ATEN, f"_scaled_dot_product_{kernel}_backward").default
    narrow, wide = 2 * 2 * 8 * 16 * 24 * 32, 2 * 2 * 8 * 16 * 24 * 48
    assert flops.count(forward, (query, key, value), {}, out) == narrow + wide
    assert flops.count(backward, (out, query, key, value), {}, query) == 3 * narrow + 2 * wide
    assert flops.is_product(forward)


def test_experts_products_are_those_of_the_whole():
    by_rows = flops.count(ATEN._grouped_mm.default, (meta(64, 8), meta(4, 8, 16)), {}, meta(64, 16))
    assert by_rows == 2 * 64 * 8 * 16
