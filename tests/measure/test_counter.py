"""The allocator's counter is exact."""

import torch

from workshop.measure import counter


def test_it_counts_tensors_to_the_byte_and_forgets_them_when_they_die():
    counter.enable()
    before = counter.live_bytes()
    first = torch.empty(12_345, dtype=torch.uint8)
    second = torch.empty(1000, 3, dtype=torch.float64)
    assert counter.live_bytes() - before == 12_345 + 24_000
    view = second[10:]
    del second
    assert counter.live_bytes() - before == 12_345 + 24_000  # the view keeps the storage
    del view, first
    assert counter.live_bytes() == before


def test_it_sees_what_cpp_allocates():
    counter.enable()
    model = torch.nn.Linear(64, 64, bias=False)
    before = counter.live_bytes()
    model(torch.ones(8, 64)).sum().backward()  # the gradient is made by the C++ engine
    assert counter.live_bytes() - before == 64 * 64 * 4


def test_enabling_twice_changes_nothing():
    counter.enable()
    before = counter.live_bytes()
    counter.enable()
    assert counter.live_bytes() == before
