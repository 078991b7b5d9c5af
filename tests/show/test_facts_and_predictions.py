"""Pictures of predictions and measurements say the numbers that were handed in, and refuse what has none."""

from __future__ import annotations

import pytest

from workshop import show
from workshop.facts.layout import Layout
from workshop.facts.measurement import Measurement
from workshop.facts.memory_parts import PARTS
from workshop.facts.run import Run
from workshop.facts.traffic import Traffic
from workshop.measure.report import MemoryReport, Timeline
from workshop.predict.memory import predict_memory
from workshop.predict.pipeline import SCHEDULES, Durations, simulate_pipeline
from workshop.show.parts import DRAWN, parts_of
from workshop.show.roof import intensity

RUN = Run(
    "llama-3.1-8b", "64xH100", Layout(shard=8, zero=3, tensor=2, pipeline=4), seq_len=8192, global_batch=64
)
LIVE = Timeline(
    [10, 30, 70, 40], {"weights": [10] * 4, "activations": [0, 20, 60, 0], "gradients": [0, 0, 0, 30]},
    ["forward", "forward", "backward", "optimizer"],
)  # fmt: skip
REPORT = MemoryReport(70, {"weights": 10, "activations": 60}, "backward", [70], LIVE)


def test_parts_of_a_prediction_sum_to_its_worst_stage() -> None:
    expected = predict_memory(RUN)
    parts = parts_of(expected)
    assert sum(parts.values()) == pytest.approx(expected.peak_bytes, rel=1e-12)
    assert set(parts) <= set(DRAWN)
    assert parts["weights"] == expected.parts["weights"][expected.worst_stage]


@pytest.mark.parametrize(
    "source",
    [REPORT, REPORT.peak_parts, Measurement(parts={"weights": 10, "activations": 60})],
    ids=["report", "mapping", "measurement"],
)
def test_parts_of_what_was_measured(source: object) -> None:
    assert parts_of(source) == {"weights": 10, "activations": 60}


def test_parts_that_a_picture_joins() -> None:
    assert parts_of({"buffers": 3, "other": 4, "buckets": 2}) == {"other": 7, "communication": 2}


def test_every_part_is_drawn_under_one_name() -> None:
    for part in PARTS:
        assert list(parts_of({part: 5}).values()) == [5], part
    with pytest.raises(ValueError, match=r"unknown part 'working'.*known: weights, weight cache"):
        parts_of({"working": 3})


@pytest.mark.parametrize(
    "layout",
    [Layout(), Layout(tensor=2, shard=2, zero=3), Layout(pipeline=4, zero=1), Layout(context=2, shard=2)],
    ids=str,
)
def test_a_prediction_uses_the_words_of_facts(layout: Layout) -> None:
    run = Run("gpt-30m", f"{layout.world_size}xH100", layout, seq_len=1024, micro_batch=1)
    assert set(predict_memory(run).parts) <= set(PARTS)


def test_memory_bars_say_total_and_error() -> None:
    picture = show.memory_by_part(
        {"predicted": {"weights": 2**20}, "measured": {"weights": 2**21}}, cap=2**21
    )
    assert "predicted 1.0 MiB (weights 1.0 MiB); measured 2.0 MiB" in repr(picture)
    drawn = [text.get_text() for text in picture.figure.axes[0].texts]
    assert "2.0 MiB  (predicted -50.0%)" in drawn
    assert "cap 2.0 MiB" in picture.figure.axes[0].get_legend_handles_labels()[1]


def test_words_that_would_cross_the_line_of_the_cap_stand_behind_it() -> None:
    sizes = {name: {"weights": mib * 2**20} for name, mib in (("far", 20), ("near", 60), ("over", 90))}
    axis = show.memory_by_part(sizes, cap=70 * 2**20, compare=False).figure.axes[0]
    begin = {text.get_text(): text.xy[0] for text in axis.texts}
    assert begin == {"20.0 MiB": 20, "60.0 MiB": 70, "90.0 MiB": 90}


def test_memory_bars_stack_to_the_total() -> None:
    axis = show.memory_by_part({"predicted": predict_memory(RUN)}).figure.axes[0]
    drawn = sum(box.get_width() for box in axis.patches) * 2**30
    assert drawn == pytest.approx(predict_memory(RUN).peak_bytes)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: show.memory_by_part({}), "no case to draw"),
        (
            lambda: show.memory_by_part({"x": {"wieghts": 1}}),
            "unknown part 'wieghts'; did you mean 'weights'",
        ),
        (lambda: show.memory_by_part({"x": 3}), "an? int has no memory by part"),
        (lambda: show.memory_timeline(3), "a int has no timeline"),
        (lambda: show.traffic_table(3), "a int has no traffic"),
        (
            lambda: show.roofline("H100", {"x": (1, 0, 1)}),
            "x: cols must be a whole number of at least 1, not 0",
        ),
        (lambda: show.roofline("H100", {"x": (1, 1, 1)}, measured={"y": 1.0}), "measured y: no such product"),
        (lambda: show.roofline("H100", {}, dtype="fp4"), "no known peak for 'fp4'"),
        (lambda: show.rank_map(Layout(), devices_per_node=0), "devices_per_node = 0"),
    ],
)
def test_what_cannot_be_drawn_is_said(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]


def test_the_timeline_marks_its_peak() -> None:
    picture = show.memory_timeline(REPORT, cap=100)
    assert "4 moments (forward, backward, optimizer), peak 70 B in backward" in repr(picture)
    assert any(text.get_text() == "peak 70 B" for text in picture.figure.axes[0].texts)


def test_traffic_of_two_cases_is_compared_line_by_line() -> None:
    one = Traffic("all_reduce", "data", 4, 2, 1000, 1500)
    more = Traffic("all_gather", "tensor", 2, 1, 50, 25)
    assert "all_reduce  data      4      2  1.000 kB     1.500 kB" in str(show.traffic_table([one]))
    assert "agree to the byte" in str(show.traffic_table({"rehearsed": [one], "measured": [one]}))
    table = show.traffic_table({"rehearsed": [one], "measured": [one, more]})
    assert "rehearsed and measured differ in 1 lines" in str(table)
    assert "<table>" in table._repr_html_()


def test_traffic_by_axis_adds_collectives_and_draws_a_bar_for_each_case() -> None:
    rows = [Traffic("all_reduce", "tensor", 4, 2, 1000, 1500), Traffic("all_gather", "tensor", 4, 1, 50, 25)]
    rows.append(Traffic("send", "pipeline", 2, 1, 40, 40))
    assert show.wire_bytes_by_axis(rows) == {"tensor": 1525, "pipeline": 40}
    picture = show.traffic_by_axis({"predicted": {"tensor": 1600}, "measured": rows}, "bytes")
    assert "bytes; predicted: tensor 1.600 kB, pipeline 0 B; measured: tensor 1.525 kB" in repr(picture)
    (axis,) = picture.figure.axes
    assert [label.get_text() for label in axis.get_yticklabels()] == ["tensor", "pipeline"]
    assert [bar.get_width() for bar in axis.patches][2:] == [1525, 40]
    with pytest.raises(ValueError, match="0 cases: give one to four"):
        show.traffic_by_axis({})


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_is_drawn_with_its_idle_share(schedule: str) -> None:
    played = simulate_pipeline(schedule, 4, 8, Durations(1.0, 2.0))
    picture = show.pipeline_gantt(played, schedule)
    assert f"idle {played.idle_share:.1%}" in repr(picture)
    busy = sum(box.get_width() for box in picture.figure.axes[0].patches)
    assert busy == pytest.approx(float(played.busy_seconds.sum()))


def test_intensity_of_a_square_product_is_a_third_of_its_side() -> None:
    assert intensity((512, 512, 512), 2.0) == pytest.approx(512 / 3)


def test_the_roofline_says_which_side_and_how_near() -> None:
    picture = show.roofline("H100", {"big": (8192,) * 3, "decode": (1, 8192, 8192)}, measured={"big": 2e-3})
    assert "big 2731 (arithmetic, reaches 56% of its roof); decode 1 (memory)" in repr(picture)


def test_products_of_a_layer_are_cut_by_tensor_parallelism() -> None:
    products = show.layer_products(RUN)
    assert products["gate"] == (8192, 14336 // 2, 4096)
    assert products["down"] == (8192, 4096, 14336 // 2)


def test_the_rank_map_places_every_rank_and_says_what_leaves_the_node() -> None:
    picture = show.rank_map(RUN.layout)
    drawn = {text.get_text() for text in picture.figure.axes[0].texts}
    assert {str(rank) for rank in range(64)} <= drawn
    assert "t1 s7 p3" in drawn
    assert "across nodes: shard, pipeline" in repr(picture)


def test_a_large_world_is_not_drawn_whole() -> None:
    assert "2,040 nodes are not drawn" in repr(show.rank_map(Layout(tensor=8, pipeline=16, shard=128)))


def test_a_plans_table_repeats_nothing_that_all_lines_share():
    from workshop.predict.plan import Search, plan

    dense = show.plan_table(plan("llama-2-7b", "16xA100-80GB", 128, 4096, search=Search(top=3)))
    assert "expert" not in str(dense)
    assert "devices each" in str(dense)
    assert max(len(line) for line in str(dense).splitlines()) < 130
    mixture = show.plan_table(plan("mixtral-8x7b", "64xH100", 256, 4096, search=Search(top=3)))
    assert "expert" in str(mixture)
