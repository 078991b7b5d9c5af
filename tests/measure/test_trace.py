"""Traces: nesting and self time on events laid by hand, and a real file of torch's profiler."""

from __future__ import annotations

import gzip
import json

import pytest
import torch

from workshop import show
from workshop.measure import read_trace, span
from workshop.measure.trace import Span, nested


def event(name, start, length, tid=1, cat="cpu_op"):
    return {"ph": "X", "name": name, "ts": start, "dur": length, "tid": tid, "cat": cat}


EVENTS = [
    event("step", 0, 100, cat="user_annotation"),
    event("a", 10, 40),
    event("b", 20, 10),
    event("a", 60, 20),
    event("kernel", 30, 50, tid=7, cat="kernel"),
    event("main", 0, 100, cat="python_function"),
    {"ph": "i", "name": "mark", "ts": 5},
]


def lay(path, events=EVENTS, **content):
    path.write_text(json.dumps({"traceEvents": events, **content}))
    return path


def test_self_time_is_what_the_inner_ones_leave(tmp_path):
    trace = read_trace(lay(tmp_path / "t.json"))
    own = {name: round(seconds * 1e6) for name, seconds in trace.self_seconds().items()}
    assert own == {"a": 50, "kernel": 50, "step": 40, "b": 10}
    assert trace.lanes == ["rank 0 GPU stream 0", "rank 0 thread 0"]
    assert {s.name: s.depth for s in trace.spans} == {"step": 0, "a": 1, "b": 2, "kernel": 0}
    assert trace.seconds == pytest.approx(100e-6)
    (step,) = (s for s in trace.spans if s.kind == "user_annotation")
    assert (step.name, step.seconds) == ("step", pytest.approx(100e-6))


def test_the_table_says_where_the_time_goes(tmp_path):
    table = read_trace(lay(tmp_path / "t.json")).table(top=2)
    assert list(table.rows[0]) == ["a", "2", "50 µs", "33.3%", "60 µs"]
    assert table.note == "2 names more: 50 µs"


def test_several_ranks_on_one_axis_of_time(tmp_path):
    first = lay(tmp_path / "0.json", [event("x", 0, 10)], baseTimeNanoseconds=1_000_000)
    second = lay(
        tmp_path / "1.json",
        [event("x", 5, 10)],
        baseTimeNanoseconds=1_010_000,
        distributedInfo={"rank": 3},
    )
    trace = read_trace([first, second])
    assert [(s.lane, round(s.start * 1e6)) for s in trace.spans] == [
        ("rank 0 thread 0", 0),
        ("rank 3 thread 0", 15),
    ]
    assert read_trace({4: first, 5: second}).lanes == ["rank 4 thread 0", "rank 5 thread 0"]


def test_only_what_lies_inside(tmp_path):
    trace = read_trace(lay(tmp_path / "t.json"))
    assert {s.name for s in trace.within("a").spans} == {"a", "b"}
    with pytest.raises(ValueError, match="no span is called 'forward'; the ranges are step"):
        trace.within("forward")


def test_files_that_are_no_trace(tmp_path):
    (tmp_path / "x").write_text("{")
    with pytest.raises(ValueError, match="is no JSON"):
        read_trace(tmp_path / "x")
    (tmp_path / "x").write_text("{}")
    with pytest.raises(ValueError, match="no list of traceEvents"):
        read_trace(tmp_path / "x")
    with pytest.raises(ValueError, match="no event with a length"):
        read_trace(lay(tmp_path / "x", []))
    (tmp_path / "x").write_bytes(gzip.compress(json.dumps(EVENTS).encode()))
    assert len(read_trace(tmp_path / "x").spans) == 5


def test_an_inner_span_that_sticks_out_counts_up_to_the_outer_end():
    spans = nested([Span("a", "", "l", 0, 10), Span("b", "", "l", 8, 14)])
    assert [(s.name, s.self_seconds) for s in spans] == [("a", 8), ("b", 6)]


def test_self_times_sum_to_the_outermost_of_a_real_profile(tmp_path):
    weight = torch.randn(64, 64, requires_grad=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        with span("forward"):
            out = (weight @ weight).relu().sum()
        with span("backward"):
            out.backward()
    profile.export_chrome_trace(str(tmp_path / "real.json"))
    trace = read_trace(tmp_path / "real.json")
    assert {s.name for s in trace.spans if s.kind == "user_annotation"} >= {"forward", "backward"}
    outermost = sum(s.seconds for s in trace.spans if s.depth == 0)
    # A file of microseconds: a span may end a fraction of one after the span that it is in.
    assert sum(trace.self_seconds().values()) == pytest.approx(outermost, rel=0.02)
    assert "aten::mm" in trace.self_seconds()
    mine = trace.within("forward").self_seconds()["aten::mm"]
    theirs = next(e for e in profile.events() if e.name == "aten::mm")
    assert mine == pytest.approx(theirs.self_cpu_time_total * 1e-6, rel=0.05, abs=3e-6)
    drawing = show.trace_lanes(trace, title="real")
    assert repr(drawing).startswith("[drawing: real: ")
    page = drawing.save_html(tmp_path / "page.html").read_text()
    assert page.count("<svg") == 1
    assert page.count("<rect") == len(trace.spans) + 1


def test_small_spans_are_left_out_and_counted(tmp_path):
    many = [event("wide", 0, 1_000_000), *(event("tiny", 10 * i, 1) for i in range(500))]
    drawing = show.trace_lanes(read_trace(lay(tmp_path / "t.json", many)))
    assert "1 of 501 spans wide enough" in repr(drawing)
    assert len(drawing.svg) < 2000
