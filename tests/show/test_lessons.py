"""Pictures that serve a single lesson: what they draw, what they refuse, and that no other day needs them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.show.examples import PICTURES
from workshop import show

ROOT = Path(__file__).parents[2]
LESSONS = "workshop.show.lessons"
OF_ONE_DAY = {name: module for name, module in show._MODULE_OF.items() if module.startswith(LESSONS)}


def used_in(name: str) -> set[str]:
    """Days whose lessons draw the picture, and modules outside `show` that name it."""
    lessons = (ROOT / "notebooks" / "source").glob("day*/*.py")
    users = {
        f"{LESSONS}.{path.parent.name[:4]}": path for path in lessons if f"show.{name}(" in path.read_text()
    }
    rooms = (path for path in (ROOT / "workshop").rglob("*.py") if "show" not in path.parts)
    pattern = re.compile(rf"\bshow\.{name}\b|\bworkshop\.show\S* import .*\b{name}\b")
    return {*users, *(str(path) for path in rooms if pattern.search(path.read_text("utf-8")))}


@pytest.mark.parametrize("name", sorted(OF_ONE_DAY))
def test_a_picture_of_one_day_serves_no_other(name: str) -> None:
    day = OF_ONE_DAY[name].partition("_")[0]  # a day may have two modules
    assert used_in(name) <= {day}, "more than one day needs it: sort it by its shape"


def test_the_test_sees_who_draws() -> None:
    assert used_in("parallel_cell") == {f"{LESSONS}.day0"}
    assert len(used_in("memory_by_part")) > 3


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


def test_in_the_ring_blocks_of_later_ranks_are_masked() -> None:
    picture = PICTURES["ring_blocks"]()
    assert "3 of 9 blocks are later ones" in repr(picture)
    words = [text.get_text() for text in picture.figure.axes[0].texts]
    assert words[:4] == ["rank 0", "of rank 0", "of 2: masked", "of 1: masked"]


def test_f_sends_backward_and_g_forward() -> None:
    (axis,) = PICTURES["f_and_g"]().figure.axes
    words = [text.get_text() for text in axis.texts]
    assert [word for word in words if word.startswith(("f:", "g:"))] == [
        "f:\nnothing", "g:\nall_reduce", "f:\nall_reduce", "g:\nnothing",
    ]  # fmt: skip


def test_shares_of_experts_are_stacked_up_to_a_hundred() -> None:
    picture = PICTURES["expert_shares"]()
    assert "alone, busiest 50% at first and 90% at the end" in repr(picture)
    top = picture.figure.axes[0].collections[-1].get_paths()[0].vertices
    assert top[:, 1].max() == pytest.approx(100)
    with pytest.raises(ValueError, match="no shares to draw"):
        show.expert_shares({})


def test_strides_say_where_each_element_is_read() -> None:
    assert "x.T reads [[0, 3], [1, 4], [2, 5]]" in repr(PICTURES["storage_and_views"]())
    with pytest.raises(ValueError, match="reads places 0 to 6 of a storage of 6"):
        show.storage_and_views(6, {"x": ((2, 3), (4, 1), 0)})
    with pytest.raises(ValueError, match="one or two dims"):
        show.storage_and_views(6, {"x": ((2, 3, 1), (3, 1, 1), 0)})


def test_a_step_that_outgrew_its_scale_is_counted() -> None:
    assert "delayed cuts in 1 of 3 steps" in repr(PICTURES["delayed_scaling"]())


def test_a_backward_without_messages_is_refused() -> None:
    with pytest.raises(ValueError, match=r"outside no_sync\(\)"):
        show.bucket_timeline([("ready", 0, "a", 0.1)], 0.2)
    words = repr(PICTURES["bucket_timeline"]())
    assert "1 of 2 buckets were sent before the last gradient was ready; 100 ms exposed" in words


def test_pieces_of_one_name_share_a_colour_and_keep_their_numbers() -> None:
    words = repr(PICTURES["piece_shares"]())
    assert "shares of 2 pieces: weights most in 1 head; seconds most in 0 stem" in words
    picture = show.piece_shares(["stem", "block", "block"], {"weights": [1, 2, 5]}, cuts={"weights": 2})
    assert "weights most in 2 block, cut after 2" in repr(picture)
    (axis,) = picture.figure.axes
    assert len({box.get_facecolor() for box in axis.patches}) == 2
    assert [text.get_text() for text in axis.texts] == ["0", "1", "2"]
    assert list(axis.lines[0].get_xdata()) == [37.5, 37.5]
    with pytest.raises(ValueError, match="9 different names, and there are 8 colours"):
        show.piece_shares(list("abcdefghi"), {"weights": range(9)})
    with pytest.raises(ValueError, match="weights has 1 numbers for 2 pieces"):
        show.piece_shares(["stem", "head"], {"weights": [1]})


def test_rows_leave_their_rank_and_come_to_the_experts_ranks() -> None:
    picture = PICTURES["rows_to_experts"]()
    assert "2 ranks send [4, 4] rows, and [1, 7] come to their experts" in repr(picture)
    words = [text.get_text() for text in picture.figure.axes[0].texts]
    assert words[2:] == ["expert 0: 1 rows", "rank 0: 1", "expert 2: 5 rows", "expert 3: 2 rows", "rank 1: 7"]
    with pytest.raises(ValueError, match="3 experts are not dealt out evenly to 2 ranks"):
        show.rows_to_experts([[1, 2, 3], [1, 2, 3]])


def test_the_second_cut_goes_through_what_the_first_has_left() -> None:
    (axis,) = PICTURES["two_cuts"]().figure.axes
    words = [text.get_text() for text in axis.texts if text.get_text().startswith("rank ")]
    assert sorted(words) == sorted(2 * [f"rank {rank}" for rank in range(4)])
    heights = {
        text.get_text(): text.get_position()[1] for text in axis.texts if text.get_position()[0] == 4.7
    }
    assert sorted((y, word) for word, y in heights.items())[1][1] == "rank 2"  # below rank 0: its tensor half


def test_a_layout_is_a_ring_where_predicted_and_a_disc_where_measured() -> None:
    picture = PICTURES["compromises"]()
    assert "a x 2 47.7 to 57.2 MiB and 100 ms to 120 ms" in repr(picture)
    (axis,) = picture.figure.axes
    assert {line.get_label() for line in axis.lines} >= {"a", "b"}  # micro-batches are in no colour
    rings = [line for line in axis.lines if line.get_markerfacecolor() == "white"]
    assert [tuple(line.get_ydata()) for line in rings] == [(100,), (200,)]
    with pytest.raises(ValueError, match="no layout to draw"):
        show.compromises({"model": {}}, 1.0)


def test_engines_have_one_curve_and_their_costs_are_told_in_words() -> None:
    picture = PICTURES["engine_costs"]()
    assert "2 engines, 2 losses each; a holds 3.8 MiB, sends 0 B; b holds 5.7 MiB, sends 5.7 MiB" in repr(
        picture
    )
    losses, held, sent = picture.figure.axes
    assert [line.get_linewidth() for line in losses.lines] == [4.0, 2.0], "each is seen"
    assert [len(axis.patches) for axis in (held, sent)] == [4, 2], "two parts and what is sent, two engines"
    with pytest.raises(ValueError, match="name the same engines in one order"):
        show.engine_costs({"a": [1.0]}, {"b": {}}, {}, {})


def test_a_point_for_each_method_and_a_line_for_none():
    picture = show.accuracy_by_trained(
        {"zero-shot": (0, 0.3), "lora": (1_000, 0.7), "full": (1_000_000, 0.8)}
    )
    (axis,) = picture.figure.axes
    assert {text.get_text() for text in axis.texts} == {"zero-shot", "lora", "full"}
    assert len(axis.lines) == 3
    assert axis.get_xscale() == "log"
    assert "lora 1,000 trained, 70%" in repr(picture)
    assert picture._repr_png_().startswith(b"\x89PNG")


def test_nothing_trained_is_told():
    with pytest.raises(ValueError, match="nothing is trained"):
        show.accuracy_by_trained({"zero-shot": (0, 0.3)})


def test_a_stem_for_each_code():
    picture = show.codes_used({"two": ([-1.0, 1.0], [1, 3]), "three": ([-1.0, 0.0, 1.0], [1, 2, 1])})
    left, right = picture.figure.axes
    assert [len(axis.collections[0].get_segments()) for axis in (left, right)] == [2, 3]
    assert left.collections[0].get_segments()[1][1].tolist() == [1.0, 0.75]
    assert "three: 3 numbers" in repr(picture)


def test_lengths_that_differ():
    with pytest.raises(ValueError, match="odd: 2 numbers and 1 counts"):
        show.codes_used({"odd": ([0.0, 1.0], [1])})


def test_harm_is_drawn_in_multiples_on_one_height():
    picture = show.harm_by_bits({"a": {"rtn": {16: 1.0, 3: 6.0}}, "b": {"rtn": {16: 1.0, 4: 1.2}}})
    assert "a 6.00 times, b 1.20 times" in repr(picture)
    first, second = picture.figure.axes
    assert first.get_ylim() == second.get_ylim()
    with pytest.raises(ValueError, match="above zero"):
        show.harm_by_bits({"a": {"rtn": {4: 0.0}}})


def test_an_impossible_save_is_refused():
    with pytest.raises(ValueError, match="plain: stands still for 2 s and is written after 1 s"):
        show.saves_in_time({"plain": (2, 1)})


def test_a_save_names_both_times():
    assert "stands still 30 ms of 400 ms" in repr(show.saves_in_time({"asynchronous": (0.03, 0.4)}))


def test_a_box_for_each_rank_and_step_in_the_colour_of_its_state():
    picture = PICTURES["states_of_ranks"]()
    (axis,) = picture.figure.axes
    assert len(axis.patches) == 4
    assert "by collective, rank 0 fine, waits; rank 1 fine, fine" in repr(picture)
    with pytest.raises(ValueError, match="no colour for lost; there are fine"):
        show.states_of_ranks({"": [["lost"]]}, {"fine": "#BBBBBB"})


def test_each_row_is_drawn_where_it_lies_and_where_it_is_read():
    picture = show.rows_read([3, 3, 3, 1], [[(0, 0, 3), (1, 3, 5)], [(1, 5, 6), (2, 6, 9), (3, 9, 10)]])
    (axis,) = picture.figure.axes
    assert len(axis.patches) == 20
    assert "rank 1 reads rows 5 to 5 of 1.pt, rows 6 to 8 of 2.pt, rows 9 to 9 of 3.pt" in repr(picture)


def test_a_sample_has_the_colour_of_how_often_it_was_read_beside_what_is_wanted():
    picture = show.times_read({"two": ([1, 2, 3, 9], 2), "one": ([1, 1, 0, 2], 1)})
    (axis,) = picture.figure.axes
    assert axis.images[0].get_array().tolist() == [[0, 1, 2, 3], [1, 1, 0, 2]]
    assert "two: 1 to 9 times, 2 wanted; one: 0 to 2 times, 1 wanted" in repr(picture)
    with pytest.raises(ValueError, match="as many samples in each way"):
        show.times_read({"a": ([1], 1), "b": ([1, 1], 1)})


def test_the_chance_to_be_found_is_the_formulas_and_points_are_the_measured_ones():
    picture = PICTURES["chance_to_be_found"]()
    (axis,) = picture.figure.axes
    few, points, many = axis.lines
    assert few.get_ydata()[100] == pytest.approx(1 - (1 - 0.5**3) ** 2)
    assert many.get_ydata()[100] == pytest.approx(1 - (1 - 0.5**4) ** 9)
    assert (points.get_xdata().tolist(), points.get_ydata().tolist()) == ([0.5, 0.9], [0.2, 0.9])
    with pytest.raises(ValueError, match="no curve for other; there are few"):
        show.chance_to_be_found({"few": (2, 3)}, {"other": {}})


def test_a_panel_of_two_jobs_begins_with_its_first_bar_and_the_rest_is_waiting():
    picture = show.two_jobs({"in turns": {0: [("train", 6.0, 7.0)], 1: [("rollout", 5.0, 6.0)]}})
    (axis,) = picture.figure.axes
    assert sorted((bar.get_x(), bar.get_width()) for bar in axis.patches) == [(0, 1000), (1000, 1000)]
    assert "in turns 50% of the time" in repr(picture)
    with pytest.raises(ValueError, match="no colour for write; there are rollout, train"):
        show.two_jobs({"a": {0: [("write", 0.0, 1.0)]}})


def test_the_quickest_split_is_marked_where_the_longer_job_is_shortest():
    picture = PICTURES["split_curve"]()
    (axis,) = picture.figure.axes
    (dot,) = [line for line in axis.lines if line.get_marker() == "o"]
    assert (list(dot.get_xdata()), list(dot.get_ydata())) == ([2], [3.0])
    assert "2 GPUs write in the quickest step, 3 s; all in turns 2 s" in repr(picture)


def test_bits_held_are_a_mean_and_a_point_for_each_seed():
    picture = PICTURES["bits_held"]()
    (axis,) = picture.figure.axes
    small, its_seeds, large, _, most = axis.lines
    assert (list(small.get_xdata()), list(small.get_ydata())) == ([1, 2], [0.95, 1.5])
    assert (list(its_seeds.get_xdata()), list(its_seeds.get_ydata())) == ([1, 1, 2], [0.9, 1.0, 1.5])
    assert list(large.get_xdata()) == [1, 4]
    assert list(most.get_ydata()) == [1, 2]
    assert "small: 0.95 at 1, 1.50 at 2; large: 1.00 at 1, 1.60 at 4" in repr(picture)


def test_runs_stand_beside_what_was_predicted_and_what_was_lost_beside_before():
    picture = PICTURES["reach_and_leak"]()
    liked, lost = picture.figure.axes
    line, judges, runs = liked.lines
    assert set(judges.get_ydata()) == {0.6}
    assert (list(line.get_ydata()), list(runs.get_ydata())) == ([0.98, 0.6], [0.97, 0.99, 0.61])
    leaked, before = lost.lines
    assert (list(leaked.get_xdata()), list(leaked.get_ydata())) == ([0, 0, 1], [0.7, 0.9, 0.2])
    assert set(before.get_ydata()) == {0.05}
    assert "neither: 5% before, 80% with weight 0, 20% with weight 1" in repr(picture)
    without_runs = show.reach_and_leak({0.1: 0.9}, {0.1: []}, {0.0: [0.7]}, 0.05, 0.8)
    assert "liked better by 80% of judges, of the two; neither" in repr(without_runs)


def test_each_run_is_a_point_that_began_where_the_model_stood() -> None:
    picture = PICTURES["learned_and_forgotten"]()
    assert "before: right answers 900, old 1.5; full: right answers 5, old 6, right answers 6, old 7" in repr(
        picture
    )
    (axis,) = picture.figure.axes
    points = [line for line in axis.lines if line.get_marker() == "o"]
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in points] == [(5, 6), (6, 7), (90, 1.6)]
    ways = [line for line in axis.lines if line.get_linestyle() == ":"]
    assert {(line.get_xdata()[0], line.get_ydata()[0]) for line in ways} == {(900, 1.5)}
    assert axis.get_xlim()[0] > axis.get_xlim()[1], "learned is to the right"


def test_ages_stand_in_their_order_beside_what_was_known_before():
    picture = show.learned_by_age({"a": {0: 0.7, 16: 0.6}, "b": {4: 0.3}}, 0.5)
    (axis,) = picture.figure.axes
    before, first, second = axis.lines
    assert [label.get_text() for label in axis.get_xticklabels()] == ["0", "4", "16"]
    assert (list(first.get_xdata()), list(second.get_xdata())) == ([0, 2], [1])
    assert set(before.get_ydata()) == {0.5}
