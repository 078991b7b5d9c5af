"""The first lesson, from the address that `make lab` prints to its solved exercise."""

from __future__ import annotations

import re

from tests.browser.lab_page import PANEL, LabPage, expect

GUESS = "What does rank 2 hold after one more all_reduce of x?"
EXERCISE = "%%exercise who_am_i"
WRONG = (
    EXERCISE
    + """
def my_share(items: list, rank: int, world_size: int) -> list:
    size = len(items) // world_size
    return items[rank * size : (rank + 1) * size]
"""
)
RIGHT = (
    EXERCISE
    + """
def my_share(items: list, rank: int, world_size: int) -> list:
    return items[rank::world_size]
"""
)


def test_the_address_opens_the_first_lesson(page: LabPage) -> None:
    page.visit()
    expect(page.page.locator(f"{PANEL} h1").first).to_have_text(re.compile("Welcome"))
    expect(page.current_tab()).not_to_have_class(re.compile("jp-mod-dirty"))  # nobody has written in it


def test_a_guess_is_kept(page: LabPage) -> None:
    page.run("%load_ext workshop")
    page.write(GUESS, f"%%guess twice\n# {GUESS}\n40")
    expect(page.run(GUESS)).to_contain_text("Your guess: 40. It is kept for the comparison below.")


def test_run_all(page: LabPage) -> None:
    page.run_all("my_share(list(")
    cells = [cell for cell in page.saved() if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in cells)
    failed = [cell for cell in cells if any(out["output_type"] == "error" for out in cell["outputs"])]
    assert ["rank 1 has had enough" in "".join(cell["source"]) for cell in failed] == [True]
    expect(page.output('beside("twice"')).to_contain_text(re.compile("yours.*40.*right"))
    expect(page.output(EXERCISE)).to_contain_text("Together the ranks must take each item exactly once")
    page.output("show.predicted_and_measured").scroll_into_view_if_needed()
    page.shot("predicted_and_measured")


def test_an_exercise_is_failed_then_solved(page: LabPage) -> None:
    page.write(EXERCISE, WRONG)
    said = page.run(EXERCISE)
    expect(said).to_contain_text("Nobody took items 8, 9")
    expect(said).to_contain_text("Hint 1 of 3")
    page.shot("exercise_wrong")
    page.write(EXERCISE, RIGHT)
    expect(page.run(EXERCISE)).to_contain_text("One program, one number that differs")
    expect(page.run("my_share(list(")).to_contain_text("[rank 1] takes b f j")
