"""Bytes, FLOPs and floors of pruned models, against counts by hand."""

import pytest

from workshop.facts.catalogue import device, model
from workshop.predict.pruned import done_flops, forward_floor, pruned_bytes


def test_bytes_of_each_pattern():
    assert pruned_bytes(1000, "dense") == 2000
    assert pruned_bytes(1000, "2:4") == 1125  # 500 values of 2 bytes, 500 places of 2 bits
    assert pruned_bytes(1000, "structured", 0.25) == 1500
    assert pruned_bytes(1000, "unstructured", 0.5) == 1125
    assert pruned_bytes(1000, "unstructured", 0.0) > pruned_bytes(1000, "dense")


def test_a_dense_kernel_multiplies_by_zero():
    assert done_flops(1000, "unstructured", 0.9) == done_flops(1000, "dense") == 2000
    assert done_flops(1000, "2:4") == 1000
    assert done_flops(1000, "structured", 0.25) == 1500


def test_few_tokens_wait_for_weights_and_many_compute():
    large, h100 = model("llama-2-70b"), device("H100")
    for tokens, gain in ((1, 16 / 9), (65_536, 2.0)):
        dense, sparse = (forward_floor(large, h100, tokens, how) for how in ("dense", "2:4"))
        assert dense.seconds / sparse.seconds == pytest.approx(gain, rel=0.02)
    one = forward_floor(large, h100, 1)
    assert one.weight_bytes == pytest.approx(2 * large.num_params, rel=0.01)  # all but the embedding
    assert one.seconds == pytest.approx(one.weight_bytes / h100.memory_bandwidth)
    many = forward_floor(large, h100, 65_536)
    assert many.seconds == pytest.approx(many.flops / h100.peak("bf16"))


@pytest.mark.parametrize(
    ("attempt", "said"),
    [
        (lambda: pruned_bytes(8, "4:8"), "unknown pattern"),
        (lambda: done_flops(8, "structured", 2), "share of zeros"),
        (lambda: forward_floor(model("llama-2-70b"), device("H100"), 0), "tokens"),
    ],
)
def test_errors_say_what_to_do(attempt, said):
    with pytest.raises(ValueError, match=said):
        attempt()
