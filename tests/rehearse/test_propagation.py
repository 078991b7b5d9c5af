"""What a rehearsal spares DTensor in an optimizer's call, and only there: with a strided shard torch does it all."""

from types import SimpleNamespace

import pytest
import torch
from torch.distributed.tensor import Replicate, Shard, _sharding_prop
from torch.distributed.tensor.placement_types import _StridedShard

from workshop.rehearse.fakemode import RememberingFakeMode, _Arguments
from workshop.rehearse.propagation import _NAME, ask_each_call_once


class Call:
    """An operator's call with one list of parameters, which counts how often it is asked for them."""

    def __init__(self, *placements):
        self.asked = 0
        self.placements = placements

    @property
    def args_spec(self):
        self.asked += 1
        return tuple(SimpleNamespace(placements=(placement,)) for placement in self.placements)


@pytest.mark.skipif(not hasattr(_sharding_prop, _NAME), reason="this torch has no flag of strided shards")
def test_a_call_is_asked_once_and_torch_answers_where_a_shard_is_strided(monkeypatch):
    told = []
    monkeypatch.setattr(_sharding_prop, _NAME, lambda strategy, call: told.append((strategy, call)))
    usual = getattr(_sharding_prop, _NAME)
    undo = ask_each_call_once()
    plain, strided = Call(Shard(0), Replicate()), Call(Shard(0), _StridedShard(0, split_factor=2))
    for call in (plain, strided, plain):
        for strategy in range(3):
            getattr(_sharding_prop, _NAME)(strategy, call)
    assert told == [(0, strided), (1, strided), (2, strided)]
    assert (plain.asked, strided.asked) == (2, 1)
    undo()
    assert getattr(_sharding_prop, _NAME) is usual


def test_an_argument_knows_the_first_that_shares_its_storage():
    with RememberingFakeMode():
        first, other = torch.zeros(4), torch.zeros(4)
        tensors, places = _Arguments(), []
        for tensor in (first, other, first[:2], other.view(2, 2), torch.zeros(4), first):
            tensors.append(tensor)
            places.append(tensors.place())
    assert places == [-1, -1, 0, 1, -1, 0]
