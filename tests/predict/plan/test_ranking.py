"""Plans prefer plain layouts where the gain of an odd one is less than what is known of it."""

import numpy as np
import pytest

from workshop.facts.catalogue import cluster, model
from workshop.predict.interval import difference
from workshop.predict.layouts import Layouts
from workshop.predict.plan import Search, SearchSpace, plan
from workshop.predict.plan.candidates import candidates, pipeline_sizes
from workshop.predict.plan.ranking import oddness, uneven


def test_of_uneven_stages_the_fewest_are_looked_at():
    sizes = pipeline_sizes(105, 2240)
    assert {35, 21, 15, 7, 53} <= set(sizes)
    assert not {54, 55, 56, 104} & set(sizes)  # two layers on the fullest, as with 53
    assert pipeline_sizes(8, 4) == (1, 2, 3, 4)
    even = [p for p in range(1, 106) if 105 % p == 0]
    assert set(even) <= set(sizes)


def test_stages_that_count_embedding_and_head_are_even():
    chunks = Layouts.of_columns(
        pipeline=np.array([16, 16, 16, 27]),
        virtual_stages=np.array([1, 8, 8, 1]),
        first_layers=np.array([-1, 0, -1, -1]),
        last_layers=np.array([-1, 0, -1, -1]),
    )
    assert uneven(126, chunks).tolist() == [True, False, True, True]


def test_idle_devices_are_odd():
    some = Layouts.of_columns(tensor=np.array([8, 8]), shard=np.array([4, 3]))
    assert oddness(32, some).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("name", "where", "batch", "seq"),
    [
        ("mt-nlg-530b", "2240xA100-80GB", 1920, 2048),
        ("mt-nlg-530b", "5128xA100-80GB", 1920, 2048),
        ("llama-3-70b", "1024xH100", 1024, 4096),
    ],
)
def test_a_plan_is_plain_unless_odd_gains_more_than_is_known(name, where, batch, seq):
    found = plan(name, where, batch, seq)
    layout, layers = found.best.run.layout, model(name).num_layers
    chunks = layout.pipeline * layout.virtual_stages
    assert layers % chunks == 0 or (layout.embedding_in_stages and (layers + 2) % chunks == 0)


def test_530b_is_planned_as_it_was_trained():
    """35 stages of three layers on 8 tensor ranks (arXiv 2201.11990), on all devices."""
    found = plan("mt-nlg-530b", "2240xA100-80GB", 1920, 2048).best
    assert (found.run.layout.tensor, found.run.layout.pipeline, found.devices) == (8, 35, 2240)
    assert "faster, less than is known" in found.reasons["pipeline"]


def test_an_odd_layout_comes_first_where_it_gains_more():
    """Three stages of 32 layers are uneven; 32 stages are even, and slower by more than is in doubt."""
    only = plan("llama-2-7b", "16xA100-80GB", 128, 4096, Search(top=1, limits=SearchSpace(pipeline=(3,))))
    assert only.best.run.layout.pipeline == 3
    both = plan("llama-2-7b", "16xA100-80GB", 128, 4096, Search(top=1, limits=SearchSpace(pipeline=(3, 32))))
    assert both.best.run.layout.pipeline == 3


def test_a_plan_says_what_cannot_be_told_apart():
    found = plan("llama-3-70b", "1024xH100", 1024, 4096)
    tied = [found.proposals[place - 1] for place in found.tied]
    assert found.tied[0] == 1
    assert len(tied) > 1
    assert "cannot be told apart" in str(found)
    for other in tied[1:]:
        assert not difference().tells_apart(found.best.causes, other.causes)
    for proposal in found.proposals:
        assert proposal.interval.lower < proposal.seconds < proposal.interval.upper


def test_candidates_have_no_stages_that_nobody_needs():
    found = candidates(model("llama-3-70b"), cluster("256xA100-80GB"), 512, 4096, SearchSpace())
    assert 27 in found.pipeline
    assert not np.isin([28, 29, 30, 31], found.pipeline).any()
