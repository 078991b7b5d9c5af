"""Explorers: a picture without ipywidgets, sliders that draw again with them."""

from __future__ import annotations

import importlib.util
from html import escape
from typing import Any

import pytest

from workshop.facts.layout import Layout
from workshop.facts.run import Run
from workshop.jupyter import explorer, widgets
from workshop.jupyter.explorer import Control, Explorer, explore
from workshop.predict.memory import predict_memory
from workshop.predict.pipeline import SCHEDULES
from workshop.show.drawing import Drawing
from workshop.show.style import Picture

EXPLORERS = [
    widgets.memory_explorer,
    widgets.time_to_train,
    widgets.pipeline_explorer,
    widgets.number_explorer,
]


@pytest.fixture
def without_ipywidgets(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        explorer.importlib.util,
        "find_spec",
        lambda name, *x: None if name == "ipywidgets" else real(name, *x),
    )


@pytest.mark.usefixtures("without_ipywidgets")
@pytest.mark.parametrize("make", EXPLORERS)
def test_without_ipywidgets_the_same_function_returns_the_picture(make: Any) -> None:
    assert isinstance(make(), Picture)
    with pytest.raises(ValueError, match="widgets=True needs ipywidgets"):
        make(widgets=True)


@pytest.mark.parametrize("make", EXPLORERS)
def test_sliders_start_with_the_picture_of_their_first_values(make: Any) -> None:
    shown, still = make(), make(widgets=False)
    assert isinstance(shown, Explorer)
    assert shown.picture.words == still.words
    assert f'alt="{escape(still.words)}"' in shown.image.value
    bundle = shown._repr_mimebundle_()
    assert {"application/vnd.jupyter.widget-view+json", "image/png", "text/plain"} <= set(bundle)


def test_moving_a_slider_draws_again() -> None:
    shown = widgets.memory_explorer()
    before, image = shown.picture.words, shown.image.value
    shown.controls["micro_batch"].value = 2
    assert shown.picture.words != before
    assert shown.image.value != image
    assert shown.values["micro_batch"] == 2
    run = Run("llama-3-8b", "64xH100", Layout(shard=64, zero=3), micro_batch=2, seq_len=8192)
    assert predict_memory(run).verdict in shown.picture.words
    assert predict_memory(run).verdict in shown.words.value


def test_a_drawing_moves_as_a_picture_does() -> None:
    def draw(side: int) -> Drawing:
        return Drawing(f"<svg width='{side}'></svg>", f"a sheet {side} wide")

    shown = explore(draw, [Control("side", 1, (1, 2))], widgets=True)
    assert isinstance(shown, Explorer)
    shown.controls["side"].value = 2
    assert shown.image.value == shown._repr_mimebundle_()["image/svg+xml"]
    assert "width='2'" in shown.image.value
    assert "image/png" not in shown._repr_mimebundle_()
    assert repr(shown) == "[sliders for side: a sheet 2 wide]"
    assert "wide" not in shown.words.value, "the words of a drawing stand in it"
    assert isinstance(explore(draw, [Control("side", 1, (1, 2))], widgets=False), Drawing)


def test_values_that_do_not_go_together_are_said_and_can_be_left_again() -> None:
    shown = widgets.memory_explorer()
    shown.controls["tensor"].value = 8
    shown.controls["pipeline"].value = 16
    assert "tensor 8 x context 1 x pipeline 16 = 128 does not divide the 64 ranks" in shown.picture.words
    shown.controls["pipeline"].value = 2
    assert "stage 1" in shown.picture.words


ONE = Run("llama-3.2-1b", "1xH100", Layout(precision="amp-bf16"), 1, 4096)


def test_one_device_has_no_cuts_to_turn() -> None:
    assert not {"tensor", "pipeline", "zero"} & set(widgets.memory_explorer(ONE).controls)
    assert "stage" not in widgets.memory_explorer(ONE).picture.words


def test_a_lesson_can_show_some_of_the_sliders() -> None:
    assert list(widgets.memory_explorer(ONE, only=("recompute", "seq_len")).controls) == [
        "seq_len",
        "recompute",
    ]


def test_every_position_of_every_slider_draws_a_prediction() -> None:
    shown = widgets.memory_explorer(ONE)
    for name, control in shown.controls.items():
        first = control.value
        for value in control.options:
            control.value = value[1] if isinstance(value, tuple) else value
            assert "GiB" in shown.picture.words, (name, value, shown.picture.words)
        control.value = first


def test_a_model_that_ends_earlier_gets_sequences_that_do() -> None:
    assert widgets.changed_run(ONE, {"model": "gpt2"}).seq_len == 1024
    assert widgets.changed_run(ONE, {"model": "gpt2", "seq_len": 512}).seq_len == 512


def test_a_pipeline_gets_as_many_micro_batches_as_stages() -> None:
    run = Run("llama-3-8b", "64xH100", Layout(shard=64, zero=3), seq_len=8192)
    assert widgets.changed_run(run, {"pipeline": 4}).accumulation == 4
    assert widgets.changed_run(run, {"pipeline": 4}).layout.shard == 16


def test_time_to_train_follows_its_sliders() -> None:
    shown = widgets.time_to_train("llama-3-8b", "H100", 64, tokens=1e12)
    days = float(shown.picture.words.split(": ")[1].split(" days")[0].replace(",", ""))
    shown.controls["devices"].value = 128
    half = float(shown.picture.words.split(": ")[1].split(" days")[0].replace(",", ""))
    assert half == pytest.approx(days / 2, rel=0.01)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_takes_the_same_work(schedule: str) -> None:
    picture = widgets.pipeline_picture(schedule, 4, 8)
    busy = sum(box.get_width() for box in picture.figure.axes[0].patches)
    assert busy == pytest.approx(4 * 8 * 3.0)


def test_a_first_value_that_is_no_choice_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown zero 4"):
        Control("zero", 4, (0, 1, 2, 3))
    with pytest.raises(ValueError, match="unknown schedule '1f2b'; did you mean '1f1b'"):
        widgets.pipeline_explorer("1f2b")


def test_a_number_is_typed() -> None:
    shown = widgets.number_explorer(0.3952)
    shown.controls["value"].value = 448.5
    assert "448.5 becomes" in shown.picture.words
    shown.controls["value"].value = float("inf")
    assert "take a finite number" in shown.picture.words
    with pytest.raises(ValueError, match="value has no choices, so it must be a number to type, not 'x'"):
        Control("value", "x")


def test_only_wrong_values_become_a_sentence() -> None:
    def broken(x: int) -> Picture:
        raise ZeroDivisionError(x)

    with pytest.raises(ZeroDivisionError):
        explore(broken, [Control("x", 1, (1, 2))], widgets=False)


def test_the_world_stays_as_large_on_a_machine_without_devices() -> None:
    run = Run("gpt-30m", "this-machine", Layout(shard=4, zero=2, precision="fp32"), 4, 256)
    assert widgets.changed_run(run, {"zero": 3}).layout.world_size == 4
    assert widgets.changed_run(run, {"tensor": 2}).layout.shard == 2
