"""Bytes by axis, counted on real ranks, are those of the closed form: to the byte, and so are the calls."""

import pytest

from workshop import show
from workshop.facts.implementation import implementation
from workshop.facts.layout import Layout
from workshop.facts.model import ModelSpec
from workshop.facts.run import Run
from workshop.predict.traffic import predict_traffic
from workshop.train import train

OURS = implementation("torch", norm="eager", step_room=0.0)
MODEL = ModelSpec(
    "tiny", 4, 32, 4, 256, num_kv_heads=2, ffn_hidden_size=88, tied_embeddings=True
)  # tied: its ends are shared by two stages


def run_of(**layout):
    cut = Layout(**layout, precision="fp32")
    return Run(MODEL, "this-machine", cut, 2, 32, accumulation=2 * cut.pipeline, implementation=OURS)


@pytest.mark.parametrize(
    "layout",
    [
        {"tensor": 2, "shard": 2, "zero": 3},
        {"pipeline": 2, "tensor": 2},
        {"pipeline": 2, "shard": 2, "zero": 3},
        {"tensor": 2, "sequence_parallel": True, "shard": 2, "zero": 3},
        {"context": 2, "shard": 2, "zero": 3},
        {"context": 2, "context_method": "ulysses", "shard": 2, "zero": 3},
    ],
    ids=[
        "tensor x shard",
        "pipeline x tensor",
        "pipeline x shard",
        "sequence x shard",
        "ring x shard",
        "ulysses x shard",
    ],
)
def test_counted_is_predicted(layout):
    run = run_of(**layout)
    predicted, measured = predict_traffic(run), train(run, num_steps=2, clip_norm=0.0)
    for rank, found in enumerate(measured.ranks):
        stage = predicted.stages[run.layout.coordinates(rank)["pipeline"]]
        wanted = {(row.name, row.axis): (row.count, row.payload_bytes, row.wire_bytes) for row in stage}
        counted = {
            (row.name, row.axis): (row.count, row.payload_bytes, row.wire_bytes) for row in found.traffic
        }
        assert counted == wanted
    on_first = measured.ranks[0]
    assert show.wire_bytes_by_axis(on_first) == predicted.on_stage(0).by_axis()
    assert all(sum(one.parts.values()) == one.allocated_bytes > 0 for one in measured.ranks)


def test_the_norm_costs_one_number():
    run = run_of(tensor=2)
    without, clipped = (train(run, num_steps=2, clip_norm=norm).ranks[0] for norm in (0.0, 1.0))
    extra = sum(row.payload_bytes for row in clipped.traffic) - sum(
        row.payload_bytes for row in without.traffic
    )
    assert extra == 4
