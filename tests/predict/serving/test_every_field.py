"""Every field of a run and of its layout moves a server's prediction, or is refused, or has a reason."""

from __future__ import annotations

from dataclasses import fields

import pytest

from workshop.facts.layout import Layout
from workshop.facts.run import Adapter, Run
from workshop.facts.serving import Serving
from workshop.predict.serving import predict_serving

NO_STEP = "a server takes no optimizer step"
WITH_PIPELINE = "only with pipeline stages, which are refused"
NO_BACKWARD = "only where something is recomputed, which is refused"
REFUSED = "refused"
CHANGES = {
    "model": {"model": "llama-2-13b"},
    "cluster": {"cluster": "H100"},
    "layout": {"cluster": "2xA100-80GB", "layout": {"tensor": 2}},
    "micro_batch": {"micro_batch": 8},
    "seq_len": {"seq_len": 8192},
    "global_batch": {"global_batch": 4},
    "accumulation": {"accumulation": 4},
    "optimizer": NO_STEP,
    "adapter": {"adapter": Adapter()},
    "target_len": "only of an encoder-decoder, which is refused",
    "implementation": "how a library trains",
    "document_len": {"document_len": 64},
    "layout.replicate": {"cluster": "2xA100-80GB", "layout": {"replicate": 2}},
    "layout.shard": {"cluster": "2xA100-80GB", "layout": {"shard": 2}},
    "layout.zero": {"layout": {"zero": 3}},
    "layout.tensor": {"cluster": "2xA100-80GB", "layout": {"tensor": 2}},
    "layout.sequence_parallel": {"layout": {"sequence_parallel": True}},
    "layout.pipeline": {"cluster": "2xA100-80GB", "layout": {"pipeline": 2}},
    "layout.schedule": WITH_PIPELINE,
    "layout.virtual_stages": WITH_PIPELINE,
    "layout.context": {"cluster": "2xA100-80GB", "layout": {"context": 2}},
    "layout.expert": {
        "model": "mixtral-8x7b",
        "cluster": "2xA100-80GB",
        "layout": {"replicate": 2, "expert": 2},
    },
    "layout.expert_tensor": "only with experts dealt out, which are refused",
    "layout.recompute": {"layout": {"recompute": "full"}},
    "layout.recompute_every": NO_BACKWARD,
    "layout.recompute_layers": NO_BACKWARD,
    "layout.recompute_modules": NO_BACKWARD,
    "layout.precision": {"layout": {"precision": "fp32"}},
    "layout.offload": {"layout": {"offload": "params"}},
    "layout.first_stage_layers": WITH_PIPELINE,
    "layout.last_stage_layers": WITH_PIPELINE,
    "layout.embedding_in_stages": WITH_PIPELINE,
    "layout.context_method": "only with context ranks, which are refused",
}
REFUSING = {
    "global_batch", "accumulation", "adapter", "document_len", "layout.shard", "layout.zero", "layout.pipeline",
    "layout.sequence_parallel", "layout.context", "layout.expert", "layout.recompute", "layout.offload",
}  # fmt: skip


def predicted(**changes):
    values = {"model": "llama-2-7b", "cluster": "A100-80GB", "seq_len": 2048, **changes}
    layout = Layout(**values.pop("layout", {}))
    found = predict_serving(Serving(Run(layout=layout, **values)), 128, 128)
    return {**found.as_json(), "room": found.capacity.room_bytes}


def test_all_fields_are_listed():
    assert set(CHANGES) == {f.name for f in fields(Run)} | {f"layout.{f.name}" for f in fields(Layout)}


@pytest.mark.parametrize("name", [name for name in CHANGES if not isinstance(CHANGES[name], str)])
def test_a_field_moves_the_prediction_or_is_refused(name):
    if name in REFUSING:
        with pytest.raises(
            ValueError, match=name.removeprefix("layout.").replace("global_batch", "accumulation")
        ):
            predicted(**CHANGES[name])
    else:
        assert predicted(**CHANGES[name]) != predicted()
