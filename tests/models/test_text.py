"""Text batches: every way to deal a step to ranks gives the single process's step."""

import pytest
import torch

from workshop.models.text import TextBatches, decode, reference_manual


def whole_step(step, num_ranks=1, accumulation=1, global_batch=8):
    """Tokens of a step over all ranks, in the order of ranks and micro-batches."""
    rows = []
    for rank in range(num_ranks):
        batches = TextBatches(16, global_batch, rank, num_ranks, accumulation)
        micro = list(batches.step(step))
        assert [tokens.shape for tokens, _ in micro] == [(batches.micro_batch, 16)] * accumulation
        rows += [tokens for tokens, _ in micro]
    return torch.cat(rows)


@pytest.mark.parametrize(("num_ranks", "accumulation"), [(1, 2), (2, 1), (2, 2), (4, 1), (4, 2), (8, 1)])
def test_any_number_of_ranks_sees_the_same_global_batch(num_ranks, accumulation):
    for step in (0, 5):
        assert torch.equal(whole_step(step, num_ranks, accumulation), whole_step(step))


def test_steps_differ_and_can_be_taken_up_anywhere():
    batches = TextBatches(16, 8)
    in_order = [next(batches.step(step))[0] for step in range(4)]
    assert not torch.equal(in_order[2], in_order[3])
    assert torch.equal(next(TextBatches(16, 8).step(3))[0], in_order[3])
    assert not torch.equal(next(TextBatches(16, 8, seed=1).step(3))[0], in_order[3])


def test_a_target_is_the_next_token():
    tokens, targets = next(TextBatches(16, 8).step(1))
    assert torch.equal(tokens[:, 1:], targets[:, :-1])
    assert tokens.dtype == targets.dtype == torch.int64


def test_a_pass_over_the_text_sees_every_window_once_and_the_next_pass_another_order():
    batches = TextBatches(4096, 1)
    first = [bytes(batches.sequence(i).tolist()) for i in range(batches.num_windows)]
    second = [bytes(batches.sequence(i + batches.num_windows).tolist()) for i in range(batches.num_windows)]
    assert len(set(first)) == batches.num_windows
    assert sorted(first) == sorted(second)
    assert first != second


def test_it_is_prose():
    text = decode(reference_manual())
    assert len(text) > 300_000
    assert 'The "for" statement is used to iterate' in text
    assert int(reference_manual().max()) < 256


def test_what_does_not_fit_is_refused_with_its_numbers():
    with pytest.raises(
        ValueError, match=r"global_batch = 6 .* 4 ranks in 1 micro-batches: the nearest that can is 8"
    ):
        TextBatches(16, 6, 0, 4)
    with pytest.raises(ValueError, match=r"rank 2 is not one of 2 \(0 to 1\)"):
        TextBatches(16, 8, 2, 2)
    with pytest.raises(ValueError, match="seq_len = 10000000: the text has"):
        TextBatches(10_000_000, 8)
