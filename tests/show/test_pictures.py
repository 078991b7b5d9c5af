"""Every picture draws itself, says in words what it shows, and stays torch-free and pyplot-free."""

from __future__ import annotations

import subprocess
import sys

import pytest

from workshop import show
from workshop.facts.layout import Layout
from workshop.measure.report import Timeline
from workshop.predict.pipeline import Durations, simulate_pipeline
from workshop.predict.published_runs import reproduce

PICTURES = {
    "accuracy_by_trained": lambda: show.accuracy_by_trained({"none": (0, 0.3), "some": (1_000, 0.7)}),
    "codes_used": lambda: show.codes_used({"two": ([-1.0, 1.0], [1, 3])}),
    "predicted_and_measured": lambda: show.predicted_and_measured(
        ["a", "b"], [4e6, 8e6], [4e6, None], cap=6e6
    ),
    "before_and_after": lambda: show.before_and_after({0: [1], 1: [2]}, {0: [3], 1: [3]}, "all_reduce"),
    "ring_steps": lambda: show.ring_steps([[[1, 1], [1, 1]], [[1, 2], [2, 1]], [[2, 2], [2, 2]]]),
    "message_curve": lambda: show.message_curve([1e3, 1e6], {"x": [1e-4, 1e-3]}, {"fit": (1e-4, 1e9)}),
    "held_and_sent": lambda: show.held_and_sent({"a": {"state": 4e9}}, {"a": {"gradients": 2e9}}, 3e9),
    "replicas": lambda: show.replicas({"weights": 4e9, "moments": 8e9}, 4, 16e9),
    "parallel_cell": lambda: show.parallel_cell(2),
    "job_tree": lambda: show.job_tree(2, 2),
    "continued_losses": lambda: show.continued_losses([3.0, 2.0, 1.0], [(0, [3.0, 2.0]), (2, [1.0])]),
    "memory_by_part": lambda: show.memory_by_part({"predicted": {"weights": 4e9}}, cap=6e9),
    "memory_timeline": lambda: show.memory_timeline(
        Timeline([1, 2], {"weights": [1, 2]}, ["forward", "backward"])
    ),
    "memory_timelines": lambda: show.memory_timelines(
        {name: Timeline([1, 2], {"weights": [1, 2]}, ["forward", "backward"]) for name in ("plain", "full")}
    ),
    "pipeline_gantt": lambda: show.pipeline_gantt(simulate_pipeline("zb-h1", 2, 4, Durations(1.0, 2.0))),
    "pipeline_gantts": lambda: show.pipeline_gantts(
        {name: simulate_pipeline(name, 2, 4, Durations(1.0, 2.0)) for name in ("gpipe", "naive")}, "two"
    ),
    "roofline": lambda: show.roofline("A100-80GB", {"qkv": (4096, 4096, 4096)}),
    "rooflines": lambda: show.rooflines({"a": (1e12, 1e11, {"norm": (1e6, 1e6)}, {"norm": 1e-5})}),
    "bucket_timeline": lambda: show.bucket_timeline(
        [("ready", 0, "b", 0.1), ("sent", 0, "", 0.1), ("ready", 1, "a", 0.2), ("sent", 1, "", 0.2)], 0.3
    ),
    "loss_by_bytes": lambda: show.loss_by_bytes({"x": [2.0, 1.0]}, {"x": [0.0, 4e3]}),
    "traffic_by_axis": lambda: show.traffic_by_axis({"predicted": {"tensor": 8_000, "pipeline": 50}}),
    "soft_targets": lambda: show.soft_targets(["a", "b"], {"T = 1": [0.9, 0.1], "T = 4": [0.6, 0.4]}, "a"),
    "two_fits": lambda: show.two_fits([0, 1, 2], [0, 1, 0], {"forward": [0.2, 0.6, 0.2]}),
    "scores_by_step": lambda: show.scores_by_step({"x": {0: 2.0, 10: 1.0}}, "loss", ("teacher", 0.5)),
    "zero_patterns": lambda: show.zero_patterns({"2:4": [[True, False], [False, True]], "row": [[True]]}),
    "spread": lambda: show.spread({"ticket": [1.0, 1.2], "fresh": [0.8, 0.9]}, "accuracy"),
    "predicted_and_published": lambda: show.predicted_and_published([reproduce("llama-65b")]),
    "goodput_by_interval": lambda: show.goodput_by_interval([1, 10], {"x": [0.8, 0.9]}, {"x": 5.0}),
    "saves_in_time": lambda: show.saves_in_time({"plain": (0.2, 0.2), "asynchronous": (0.03, 0.4)}),
    "channel_sizes": lambda: show.channel_sizes({"layer 0": [1.0, 9.0]}, 6.0),
    "grid_steps": lambda: show.grid_steps([-1.0, 0.2, 0.4], {"absmax": [-1.0, 0.0, 0.5]}),
    "size_and_perplexity": lambda: show.size_and_perplexity(
        {"rtn": (0.5, 50.0), "gptq": (0.5, 40.0)}, ("fp32", 36.0)
    ),
    "rank_map": lambda: show.rank_map(Layout(tensor=2, shard=2)),
    "causal_work": lambda: show.causal_work({"contiguous": [0, 0, 1, 1], "zigzag": [0, 1, 1, 0]}),
    "layout_seconds": lambda: show.layout_seconds({"a": (0.1, 0.12), "b": (0.2, None)}, "two"),
    "piece_shares": lambda: show.piece_shares(["stem", "head"], {"weights": [1, 3], "seconds": [4, 1]}),
    "cut_matrices": lambda: show.cut_matrices(
        {"A": (4, 8, "columns"), "B": (8, 4, "rows"), "norm": (1, 4, "whole")}, 4
    ),
    "number_in_formats": lambda: show.number_in_formats(0.3952),
    "format_ranges": lambda: show.format_ranges(),
    "error_by_size": lambda: show.error_by_size([1.0, 2.0], {"bf16": [1e-3, 2e-3], "fp16": [1e-4, 1.0]}),
    "sizes_by_layer": lambda: show.sizes_by_layer({"x": [3.0, 900.0]}, {"x": [0.1, 0.2]}, {"448": 448}),
    "delayed_scaling": lambda: show.delayed_scaling([1.0, 8.0, 1.0], {"delayed": [1.0, 1.0, 8.0]}),
    "bars_by_group": lambda: show.bars_by_group(
        {"a": {"x": 0.1, "y": 0.2}, "b": {"x": 0.3, "y": 0.1}}, "error"
    ),
    "gradient_sizes": lambda: show.gradient_sizes(
        {"fp32": [1, 5, 2], "fp16": [0, 4, 2]}, -25, {"fp32": 0.1, "fp16": 0.4}, {"smallest": -24}
    ),
    "training_curves": lambda: show.training_curves(
        {"a": [3.0, 2.0], "b": [3.0, 1.0]}, {"b": [4, 8]}, "scale", True
    ),
    "phase_bars": lambda: show.phase_bars(
        {"rank 0": {"data": 0.01, "forward": 0.02, "mine": 0.001}}, "a step"
    ),
    "storage_and_views": lambda: show.storage_and_views(
        6, {"x": ((2, 3), (3, 1), 0), "x.T": ((3, 2), (1, 3), 0)}
    ),
}


NO_PICTURES = {"traffic_table", "wire_bytes_by_axis", "plan_table", "layer_products"}
DRAWINGS = {"monitor_strips", "trace_lanes", "icicle"}  # SVG: tests/measure


@pytest.mark.parametrize("name", sorted(set(show.__all__) - NO_PICTURES - DRAWINGS))
def test_each_picture_is_a_png_and_has_words(name: str) -> None:
    for _ in range(2):  # a second call finds the function, not the module it lives in
        picture = PICTURES[name]()
    assert picture._repr_png_().startswith(b"\x89PNG")
    assert len(repr(picture)) > 20


def test_out_of_memory_is_said_in_words() -> None:
    words = repr(PICTURES["predicted_and_measured"]())
    assert "b, predicted 7.6 MiB, out of memory" in words


def test_rooflines_have_measured_points_where_seconds_are() -> None:
    one = {"norm": (1e6, 1e6), "product": (1e9, 1e6)}
    picture = show.rooflines(
        {"here": (1e12, 1e11, one, dict.fromkeys(one, 0.01)), "there": (1e12, 1e11, one, None)}
    )
    here, there = picture.figure.axes
    faces = [
        [line.get_markerfacecolor() for line in axis.lines if line.get_marker() == "o"]
        for axis in (here, there)
    ]
    assert "white" not in faces[0]
    assert set(faces[1]) == {"white"}
    assert [line.get_ydata()[0] for line in there.lines if line.get_marker() == "o"] == [0.1, 1.0]
    with pytest.raises(ValueError, match="2 different lists"):
        show.rooflines({"a": (1, 1, one, None), "b": (1, 1, {"norm": (1, 1)}, None)})


def test_timelines_side_by_side_share_their_height() -> None:
    sizes = {"plain": [1, 9], "full": [1, 4]}
    timelines = {n: Timeline(s, {"weights": s}, ["forward", "backward"]) for n, s in sizes.items()}
    picture = show.memory_timelines(timelines)
    assert len({axis.get_ylim() for axis in picture.figure.axes}) == 1
    assert picture.words == "peaks: plain 9 B, full 4 B"
    with pytest.raises(ValueError, match="no timeline to draw"):
        show.memory_timelines({})


def test_timelines_below_each_other_share_their_time() -> None:
    picture = PICTURES["pipeline_gantts"]()
    assert "two: gpipe 15 s, idle 20.0%; naive 24 s, idle 50.0%" in repr(picture)
    (axis,) = picture.figure.axes
    lines = [label.get_text() for label in axis.get_yticklabels()]
    assert lines == ["gpipe, rank 0", "gpipe, rank 1", "naive, rank 0", "naive, rank 1"]
    assert axis.get_xlim() == (0, 24)
    assert len(axis.patches) == 2 * 2 * 4 * 2  # timelines, ranks, micro-batches, F and B
    with pytest.raises(ValueError, match="no timelines to draw"):
        show.pipeline_gantts({})


def test_a_cut_matrix_has_a_part_for_each_rank_that_tiles_it() -> None:
    picture = PICTURES["cut_matrices"]()
    assert "4 ranks: A in columns; B in rows; norm whole" in repr(picture)
    (axis,) = picture.figure.axes
    sizes = [(patch.get_height(), patch.get_width()) for patch in axis.patches]
    assert sizes == [(4, 2)] * 4 + [(2, 4)] * 4 + [(1, 4)]
    assert len({patch.get_xy() for patch in axis.patches}) == len(sizes)
    with pytest.raises(ValueError, match="A has 4 rows and 6 columns: its columns do not divide by 4 ranks"):
        show.cut_matrices({"A": (4, 6, "columns")}, 4)
    with pytest.raises(ValueError, match="A is cut by 'diagonal'; known are columns, rows, whole"):
        show.cut_matrices({"A": (4, 6, "diagonal")}, 4)


def test_the_work_under_a_causal_mask_is_the_area_below_the_diagonal() -> None:
    picture = PICTURES["causal_work"]()
    assert "contiguous, busiest rank 1.50 times the mean; zigzag, busiest rank 1.00" in repr(picture)
    areas = [
        sum(
            (right[0] + left[0]) / 2 - corners[0][0]
            for corners, left, right in ((p.get_xy(), p.get_xy()[1], p.get_xy()[2]) for p in axis.patches)
        )
        for axis in picture.figure.axes
    ]
    assert areas == [8.0, 8.0]  # half of 4 x 4, whoever computes it
    with pytest.raises(ValueError, match="no runs to draw"):
        show.causal_work({})


def test_lists_of_unequal_length_are_refused() -> None:
    with pytest.raises(ValueError, match="2 names, 1 predictions, 2 measurements"):
        show.predicted_and_measured(["a", "b"], [1.0], [1.0, 2.0])


def test_a_backward_without_messages_and_curves_without_bytes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"outside no_sync\(\)"):
        show.bucket_timeline([("ready", 0, "a", 0.1)], 0.2)
    with pytest.raises(ValueError, match="name the same runs"):
        show.loss_by_bytes({"x": [1.0]}, {"y": [1.0]})
    words = repr(PICTURES["bucket_timeline"]())
    assert "1 of 2 buckets left before the last gradient was there; 100 ms after it" in words


def test_an_unknown_picture_lists_the_known() -> None:
    with pytest.raises(AttributeError, match=r"no picture 'bar_chart'; it has .*replicas"):
        show.bar_chart  # noqa: B018


def test_importing_show_loads_no_matplotlib_and_drawing_no_pyplot() -> None:
    code = (
        "import sys; from workshop import show; assert 'matplotlib' not in sys.modules\n"
        "show.parallel_cell()._repr_png_(); assert 'matplotlib.pyplot' not in sys.modules and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_number_is_said_in_every_format() -> None:
    words = repr(PICTURES["number_in_formats"]())
    assert (
        "0.3952 becomes fp32 0.3952, tf32 0.395264, bf16 0.394531, fp16 0.395264, e4m3 0.40625, e5m2 0.375"
        in words
    )
    with pytest.raises(ValueError, match="finite"):
        show.number_in_formats(float("inf"))


def test_strides_say_where_each_element_is_read() -> None:
    assert "x.T reads [[0, 3], [1, 4], [2, 5]]" in repr(PICTURES["storage_and_views"]())
    with pytest.raises(ValueError, match="reads places 0 to 6 of a storage of 6"):
        show.storage_and_views(6, {"x": ((2, 3), (4, 1), 0)})
    with pytest.raises(ValueError, match="one or two dims"):
        show.storage_and_views(6, {"x": ((2, 3, 1), (3, 1, 1), 0)})


def test_a_step_that_outgrew_its_scale_is_counted() -> None:
    assert "delayed cuts in 1 of 3 steps" in repr(PICTURES["delayed_scaling"]())
