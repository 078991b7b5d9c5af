"""Shapes: tiles, waves, alignment and the roofline do what they should."""

import numpy as np
import pytest

from workshop.predict.time.matmul import Product, alignment, matmul_seconds, training_matmul_seconds
from workshop.predict.time.rates import rates_of

A100 = rates_of("A100-80GB")
PEAK, BANDWIDTH = 250e12, 1.6e12


def seconds(rows, cols, depth, batch=1):
    return float(matmul_seconds(A100, PEAK, BANDWIDTH, Product(rows, cols, depth, batch)))


def rate(rows, cols, depth):
    return 2 * rows * cols * depth / seconds(rows, cols, depth)


def test_a_large_product_nears_the_reachable_rate_and_none_exceeds_it():
    assert 0.9 * PEAK < rate(16384, 16384, 16384) <= PEAK
    for shape in ((256, 256, 256), (4096, 4096, 4096), (8192, 50304, 4096), (12345, 6789, 1024)):
        assert rate(*shape) <= PEAK


def test_a_wave_more_costs_a_wave():
    """108 multiprocessors: a 109th tile of 256 x 128 waits for a second wave."""
    one, two = seconds(256 * 108, 128, 65536), seconds(256 * 109, 128, 65536)
    assert two / one > 1.03  # 1.009 by arithmetic alone; smaller tiles keep it from being 2


def test_sizes_that_do_not_align_are_slower():
    assert rate(8192, 50257, 768) < 0.7 * rate(8192, 50304, 768)
    assert float(alignment(A100, 50257)) == A100.unaligned
    assert float(alignment(A100, 50304)) == 1
    h100 = rates_of("H100")
    assert float(alignment(h100, 1800)) == h100.misaligned < 1


def test_on_an_a100_half_of_a_depth_takes_half_of_the_time_though_it_is_no_multiple_of_64():
    """Llama-2 7B's last product on eight ranks and on four, 3,264 tokens: 0.158 and 0.311 ms (microsoft/vidur)."""
    ratio = seconds(3264, 4096, 1376) / seconds(3264, 4096, 2752)
    assert ratio == pytest.approx(0.158 / 0.311, rel=0.06)


def test_a_thin_product_is_bound_by_memory():
    thin = seconds(1, 8192, 8192)
    assert thin == pytest.approx(2 * 8192 * 8192 / BANDWIDTH, rel=0.2)


def test_nothing_is_shorter_than_a_kernel():
    assert seconds(8, 8, 8) >= A100.kernel_seconds


def test_a_batch_of_small_products_is_not_worse_than_one_by_one():
    assert seconds(512, 512, 512, batch=64) < 64 * seconds(512, 512, 512)


def test_training_is_three_products():
    three = training_matmul_seconds(A100, PEAK, BANDWIDTH, Product(4096, 8192, 2048))
    assert three.shape == (3,)
    assert three[0] == pytest.approx(seconds(4096, 8192, 2048))
    assert three[1] == pytest.approx(seconds(4096, 2048, 8192))
    assert three[2] == pytest.approx(seconds(2048, 8192, 4096))


def test_arrays_broadcast():
    rows = np.array([1024, 2048, 4096])
    together = matmul_seconds(A100, PEAK, BANDWIDTH, Product(rows, 4096, 4096))
    assert together.tolist() == [seconds(r, 4096, 4096) for r in rows]
