"""Explorers: each kind of control is moved as a learner moves it, and the picture and the words follow."""

from __future__ import annotations

import pytest

from tests.browser.lab_page import LabPage, Locator, expect

NOTEBOOK = "try/sliders.ipynb"


@pytest.fixture
def sliders(page: LabPage) -> LabPage:
    page.open(NOTEBOOK)
    return page


def control(output: Locator, name: str) -> Locator:
    """The control with this label."""
    return output.locator(".widget-inline-hbox", has_text=name)


def picture(output: Locator) -> str | None:
    return output.locator("img").get_attribute("src")


def changes(output: Locator, before: str | None) -> None:
    expect(output.locator("img")).not_to_have_attribute("src", before or "")


def test_a_slider_by_mouse_and_by_keys(sliders: LabPage) -> None:
    sliders.run("import memory_explorer")
    output = sliders.run("memory_explorer()")
    batch = control(output, "micro batch")
    readout = batch.locator(".widget-readout")
    expect(readout).to_have_text("1")
    for moves, shown in (("mouse", "16"), ("ArrowLeft", "8")):
        before = picture(output)
        if moves == "mouse":
            handle, track = batch.locator(".noUi-handle"), batch.locator(".noUi-target")
            handle.drag_to(
                track, target_position={"x": track.bounding_box()["width"] - 1, "y": 2}, force=True
            )
        else:
            batch.locator(".noUi-handle").focus()
            sliders.page.keyboard.press(moves)
        expect(readout).to_have_text(shown)
        changes(output, before)
    readout.click(force=True)
    sliders.page.keyboard.type("7")
    expect(readout).to_have_text("8")  # it is no field, though it looks like one: a digit there blanked it
    sliders.shot("memory_explorer")


def test_a_choice_from_a_list(sliders: LabPage) -> None:
    output = sliders.run("pipeline_explorer()")
    before = picture(output)
    control(output, "schedule").locator("select").select_option("gpipe")
    changes(output, before)
    expect(output).to_contain_text("gpipe")


def test_a_number_is_typed(sliders: LabPage) -> None:
    output = sliders.run("number_explorer(0.3952)")
    before = picture(output)
    field = control(output, "value").locator("input")
    field.fill("448.5")
    field.press("Enter")
    changes(output, before)
    expect(output).to_contain_text("448.5 becomes")
    expect(field).to_have_value("448.5")


def test_values_that_do_not_go_together_are_said(sliders: LabPage) -> None:
    output = sliders.output("memory_explorer()")
    for name in ("tensor", "pipeline"):
        handle = control(output, name).locator(".noUi-handle")
        handle.focus()
        sliders.page.keyboard.press("End")
    expect(output).to_contain_text("tensor 8 x context 1 x pipeline 16 = 128 does not divide the 64 ranks")
    control(output, "pipeline").locator(".noUi-handle").focus()
    sliders.page.keyboard.press("Home")
    expect(output).not_to_contain_text("does not divide")
