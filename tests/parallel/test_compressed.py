"""Fewer bytes: each hook and 1-bit Adam against a plain twin, with the bytes that really travel."""

from pathlib import Path

import numpy as np
import pytest
import torch

from workshop import launch
from workshop.parallel.powersgd import factor_values, orthogonal
from workshop.parallel.signs import BLOCK, SignState, decode, encode

RANKS = 4
SHAPES = [(64, 48), (64,), (24, 64), (24,)]
SIZE = sum(int(np.prod(shape)) for shape in SHAPES)


@pytest.fixture(scope="module")
def found():
    program = launch.Script(Path(__file__).parent / "programs" / "compressed.py")
    return launch.torchrun(program, RANKS, limits=launch.Limits(timeout=100))


def in_a_ring(payload):
    return 2 * (RANKS - 1) / RANKS * payload


def signs_bytes(num_values, ranks):
    """Of a vector cut for so many ranks: whole blocks, as many for each; a bit a number, and a scale a block."""
    return -(-num_values // (ranks * BLOCK)) * ranks * (BLOCK // 8 + 4)


def test_16_bits_are_the_mean_within_their_rounding_and_half_the_bytes(found):
    for rank in range(RANKS):
        hooks = found[rank].hooks
        assert hooks["none"][1] < 1e-6
        assert 0 < hooks["fp16"][1] < 2**-9
        assert 2**-12 < hooks["bf16"][1] < 2**-6
        assert hooks["none"][2] == in_a_ring(4 * SIZE)
        assert hooks["fp16"][2] == hooks["bf16"][2] == in_a_ring(2 * SIZE)


def test_powersgd_by_hand_is_torchs(found):
    difference, first_factors = found[0].powersgd
    assert first_factors == 2
    assert difference < 1e-5


def test_powersgd_is_exact_where_the_mean_has_that_rank_and_sends_its_factors(found):
    hooks = found[2].hooks
    assert hooks["powersgd-exact"][1] < 1e-9  # a sample on each of four ranks: gradients of rank four
    assert hooks["powersgd-by-hand"][1] > 1e-3
    vectors = 64 + 24
    factors = 2 * (64 + 48) + 2 * (24 + 64)
    assert hooks["powersgd-by-hand"][2] == in_a_ring(4 * (vectors + factors))


def test_every_rank_gets_the_same_bits(found):
    for name, (gradient, _, _) in found[0].hooks.items():
        for rank in range(1, RANKS):
            np.testing.assert_array_equal(gradient, found[rank].hooks[name][0], err_msg=name)


def test_signs_with_memory_are_a_plain_twins_and_lose_nothing(found):
    for rank in range(RANKS):
        to_twin, lost, late = found[rank].sign_means
        assert to_twin < 1e-5
        assert lost < 1e-5 < late


def test_the_bytes_of_signs_are_packed(found):
    wanted = in_a_ring(signs_bytes(SIZE, RANKS))
    assert found[0].hooks["sign"][2] == wanted
    assert wanted < in_a_ring(4 * SIZE) / 17  # 31 but for the padding to whole blocks on each rank


def test_forgetting_changes_the_gradient(found):
    assert np.abs(found[0].hooks["sign"][0] - found[0].hooks["sign-forgetful"][0]).max() > 0


def test_one_bit_adam(found):
    for rank in range(RANKS):
        to_adam, to_twin, between_ranks, traffic, size = found[rank].one_bit_adam
        assert to_adam < 1e-6
        assert to_twin < 1e-5
        assert between_ranks == 0
        assert traffic == [in_a_ring(4 * size)] * 4 + [in_a_ring(signs_bytes(size, RANKS))] * 8
        assert found[rank].resumed == 0


def one_step_of_hook(hook):
    import torch
    import torch.distributed as dist

    from workshop.parallel.ddp import wrap_ddp

    dist.init_process_group()
    model = wrap_ddp(torch.nn.Linear(300, 100, bias=False), hook=hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.randn(2, 300)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize(
    ("hook", "payload"),
    [
        ("bf16", 2 * 30_000),
        ("powersgd-by-hand", 4 * 2 * (300 + 100)),
        ("sign", 2 * signs_bytes(30_000, 1_024)),  # what is scattered, and what is gathered
    ],
)
def test_hooks_are_rehearsed_in_a_world_of_1024(hook, payload):
    from workshop.rehearse import rehearse

    played = rehearse(one_step_of_hook, 1_024, steps=3, arguments=(hook,))
    assert sum(row.payload_bytes for row in played.traffic) == payload


# -- without ranks ------------------------------------------------------------------------------


def test_encode_packs_a_bit_a_number():
    values = torch.randn(3 * BLOCK)
    message = encode(values)
    assert message.dtype == torch.uint8
    assert message.shape == (3, BLOCK // 8 + 4)
    back = decode(message)
    torch.testing.assert_close(back.sign(), values.sign())
    torch.testing.assert_close(back.view(3, -1)[:, 0].abs(), values.view(3, -1).abs().mean(1))
    assert decode(encode(torch.zeros(BLOCK))).abs().max() == 0


def test_factors_only_where_they_are_fewer():
    assert factor_values(100, 50, 2) == 300
    assert factor_values(4, 4, 2) is None
    assert factor_values(100, 1, 2) is None


def test_orthogonal():
    columns = orthogonal(torch.randn(20, 4, dtype=torch.float64))
    torch.testing.assert_close(columns.T @ columns, torch.eye(4, dtype=torch.float64), atol=1e-6, rtol=0)


def test_states_refuse_a_start_before_the_buckets_are_settled():
    with pytest.raises(ValueError, match="start = 1: at least 2"):
        SignState(start=1)
    from workshop.parallel.powersgd import PowerSGD

    with pytest.raises(ValueError, match="rank = 0"):
        PowerSGD(rank=0)
    from workshop.parallel.onebit_adam import OneBitAdam

    with pytest.raises(ValueError, match="warmup must be a whole number"):
        OneBitAdam([torch.nn.Parameter(torch.zeros(1))], warmup=0)
