"""Intervals: wider by each doubt, carried by every prediction, and two layouts told apart or not."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest

from workshop.facts.layout import Layout
from workshop.facts.run import Adapter, Run
from workshop.predict.interval import (
    MEMORY_DOUBTS,
    TIME_DOUBTS,
    Bars,
    Difference,
    Interval,
    bars,
    difference,
    memory_doubts,
    memory_margins,
    time_doubts,
    with_outside,
)
from workshop.predict.memory import predict_memory
from workshop.predict.time.step import predict_step

MEGATRON = {"precision": "megatron-bf16", "sequence_parallel": True, "tensor": 2}
PLAIN = Run("llama-3-8b", "8xH100", Layout(shard=4, zero=1, **MEGATRON), implementation="megatron")
KNOWN = Bars(
    0.1,
    -1.0,
    2.0,
    {"pipeline": 1.5, "device": 2.0},
    frozenset({"H100"}),
    frozenset({"megatron/megatron-core"}),
)


def test_an_interval_holds_what_lies_between_its_ends():
    found = Interval(1.0, 2.0)
    assert [found.holds(x) for x in (0.9, 1.0, 1.5, 2.0, 2.1)] == [False, True, True, True, False]
    assert found.times(10) == (10.0, 20.0)


def test_doubts_widen_both_sides_by_their_product():
    plain, doubted = KNOWN.around(5.0, ()), KNOWN.around(5.0, ("pipeline", "device"))
    assert plain == pytest.approx((5 * math.exp(-0.1), 5 * math.exp(0.2)))
    assert doubted == pytest.approx((5 * math.exp(-0.3), 5 * math.exp(0.6)))


@pytest.mark.parametrize(
    ("run", "doubt"),
    [
        (replace(PLAIN, layout=Layout(pipeline=4, zero=1, **MEGATRON), accumulation=4), "pipeline"),
        (
            replace(PLAIN, cluster="16xH100", layout=Layout(shard=8, zero=1, **MEGATRON), global_batch=0),
            "nodes",
        ),
        (replace(PLAIN, layout=replace(PLAIN.layout, precision="megatron-fp8")), "few_bits"),
        (replace(PLAIN, adapter=Adapter()), "adapter"),
        (replace(PLAIN, cluster="8xB200"), "device"),
        (replace(PLAIN, implementation="torch"), "stack"),
        (replace(PLAIN, implementation="torch"), "undescribed"),
        (replace(PLAIN, model="mixtral-8x7b"), "experts"),
    ],
)
def test_a_fact_of_the_run_is_a_doubt(run, doubt):
    assert time_doubts(PLAIN, "megatron-core", KNOWN) == ()
    assert doubt in time_doubts(run, "megatron-core", KNOWN)


def test_many_nodes_are_more_than_eight():
    run = Run("llama-3-8b", "128xH100", Layout(shard=64, zero=1, **MEGATRON), implementation="megatron")
    assert {"nodes", "many_nodes"} <= set(time_doubts(run, "megatron-core", KNOWN))


def test_what_is_kept_only_widens():
    for kind, names in (("time", TIME_DOUBTS), ("memory", MEMORY_DOUBTS)):
        kept = bars(kind)
        assert set(kept.wider) == set(names)
        assert min(kept.wider.values()) >= 1
        assert kept.lower < 0 < kept.upper
    assert "H100" in bars("time").devices
    assert "megatron/megatron-core" in bars("time").stacks


def test_a_step_shows_its_interval():
    found = predict_step(PLAIN)
    low, high = found.interval
    assert low == found.low < found.seconds < found.high == high
    assert re.search(r"\(\d.* to \d.* in 8 of 10 cases\)", repr(found))
    assert "in 8 of 10 cases" in found._repr_html_()
    far = predict_step(replace(PLAIN, implementation="torch")).interval
    assert far.upper / far.lower > high / low  # a stack that nobody measured


def test_memory_shows_its_interval():
    found = predict_memory(PLAIN)
    assert found.interval.holds(float(found.device[found.worst_stage]))
    assert found.allocated_interval.holds(found.peak_bytes)
    assert "in 8 of 10 cases" in repr(found)
    ratio = [x.upper / x.lower for x in (found.allocated_interval, found.interval)]
    assert ratio[0] <= ratio[1]  # what PyTorch does not allocate is known less well


TWO = Difference(floor=0.02, slope=0.5, quantile=1.5)


def test_what_two_layouts_share_cancels():
    """The same causes in the same shares: only the floor is left, however slow the two are."""
    one = np.array([3.0, 1.0])
    assert TWO.margin(one, 7 * one) == pytest.approx(1.5 * 0.02)
    other = np.array([1.0, 1.0])
    distance = 2 * 0.25**2
    assert TWO.margin(one, other) == pytest.approx(1.5 * math.sqrt(0.02**2 + 0.5**2 * distance))


def test_layouts_are_told_apart_by_more_than_the_margin():
    one = {"matmul": 3.0, "data": 1.0}
    assert not TWO.tells_apart(one, {"matmul": 3.05, "data": 1.02})
    assert TWO.tells_apart(one, {"matmul": 3.3, "data": 1.1})
    assert not TWO.tells_apart(one, {"matmul": 3.0, "bubble": 1.3})  # other causes: less is known
    assert difference().margin(np.array([1.0]), np.array([1.0])) > 0


def test_a_device_that_you_calibrated_is_not_in_doubt(tmp_path, monkeypatch):
    run = replace(PLAIN, cluster="8xB200")
    assert "device" in time_doubts(run, "megatron-core", KNOWN)
    file = tmp_path / "own.toml"
    file.write_text('[device."B200"]\nlike = "B200"\nsustained = 0.6\n')
    monkeypatch.setenv("WORKSHOP_RATES", str(file))
    assert "device" not in time_doubts(run, "megatron-core", KNOWN)


def test_a_program_is_undescribed_until_somebody_looks_at_it_or_you_calibrate(tmp_path, monkeypatch):
    run = replace(PLAIN, implementation="torch")
    assert "undescribed" in time_doubts(run, "my-loop", KNOWN)
    looked_at = time_doubts(run, "my-loop", KNOWN, described=True)
    assert "undescribed" not in looked_at
    assert "stack" in looked_at
    file = tmp_path / "own.toml"
    file.write_text('[device."H100"]\nlike = "H100"\nsustained = 0.6\n')
    monkeypatch.setenv("WORKSHOP_RATES", str(file))
    assert "undescribed" not in time_doubts(run, "my-loop", KNOWN)


def test_memory_of_an_undescribed_program_is_known_less_well():
    nothing = dict.fromkeys(("experts", "few_bits", "adapter"), False)
    known = Bars(0.1, -1.0, 1.0, stacks=frozenset({"megatron"}))
    assert memory_doubts(nothing, "megatron", False, known) == ()
    assert memory_doubts(nothing, "nobody's", False, known) == ("stack", "undescribed")
    assert memory_doubts(nothing, "nobody's", False, known, described=True) == ("stack",)
    assert memory_doubts(nothing, "workshop", False, known) == ("stack",)  # our own, measured on a GPU
    assert memory_doubts(nothing, "adapt", False, known) == ("stack",)
    wide, narrow = (bars("memory").around(1.0, x) for x in (("stack", "undescribed"), ("stack",)))
    assert wide.upper - 1 > 2 * (narrow.upper - 1)


def test_what_an_undescribed_program_reserves_is_no_less_sure_than_what_it_allocates():
    assert with_outside(("pipeline", "stack")) == ("pipeline", "stack", "outside")
    assert with_outside(("stack", "undescribed")) == ("stack", "undescribed")
    nothing = dict.fromkeys(("experts", "few_bits", "adapter"), False)
    allocated, reserved = memory_margins(nothing, "nobody's", False)
    assert allocated == reserved
    allocated, reserved = memory_margins(nothing, "megatron", False)
    assert reserved.lower < allocated.lower < 1 < allocated.upper < reserved.upper
