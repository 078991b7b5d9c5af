"""The pattern of a lesson (CONTRIBUTING): one thread, guesses that are compared, cells that are read at a glance."""

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

Cell = dict[str, Any]
LESSONS = sorted((Path(__file__).parents[2] / "notebooks").glob("day*/*.ipynb"))
OF_DAYS_1_TO_5 = [path for path in LESSONS if "1" <= path.stem[0] <= "5"]
MODEL_AND_TEXT = "- **Model and text:** "
LONGEST_CELL = 30

# How many cells are longer, by lesson; on days 0 to 2 the prose above gives the reason. It should shrink.
LONG_CELLS = {
    "23_ddp_limits": 1,
    "32_pipeline": 1,
    "33_context_parallel": 3,
    "36_vision_lab": 3,
    "42_fp8_training": 3,
    "51_adapters": 1,
    "52_qlora": 2,
    "62_when_it_breaks": 2,
    "63_checkpoints": 2,
    "64_plan_a_run": 3,
}


def cells_of(path: Path) -> list[Cell]:
    cells: list[Cell] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return cells


def text_of(cell: Cell) -> str:
    return "".join(cell["source"])


def long_cells(cells: list[Cell]) -> list[int]:
    """Lines of each cell of code that is too long; the script at the end may be."""
    code = [
        text_of(cell)
        for cell in cells
        if cell["cell_type"] == "code" and "script" not in cell["metadata"].get("tags", ())
    ]
    lines = [sum(bool(line.strip()) for line in text.splitlines()) for text in code]
    return [number for number in lines if number > LONGEST_CELL]


def guesses(cells: list[Cell]) -> tuple[list[str], list[str]]:
    """Names that are asked for, and names that are laid beside what happened."""
    text = "\n".join(text_of(cell) for cell in cells if cell["cell_type"] == "code")
    asked = re.findall(r"(?m)^%%guess (\w+)", text)
    return sorted(asked), sorted(re.findall(r"\bbeside\(\s*\"(\w+)\"", text))


def by_stem(path: Path) -> str:
    return path.stem


@pytest.mark.parametrize("path", OF_DAYS_1_TO_5, ids=by_stem)
def test_a_lesson_says_which_model_and_text_it_trains(path: Path) -> None:
    lines = text_of(cells_of(path)[0]).splitlines()
    place = [number for number, line in enumerate(lines) if line.startswith(MODEL_AND_TEXT)]
    assert len(place) == 1
    after = next(line for line in lines[place[0] + 1 :] if line.startswith("- "))
    assert after.startswith("- **Links:**")


def unseen(cells: list[Cell]) -> list[str]:
    """Comparisons that no reader sees: a notebook shows only what a cell's last line gives."""
    code = [text_of(cell) for cell in cells if cell["cell_type"] == "code"]
    lost: list[str] = []
    for text in (text for text in code if "beside(" in text and not text.startswith("%")):
        *before, _ = ast.parse(text).body
        lost += [ast.unparse(line) for line in before if ast.unparse(line).startswith("beside(")]
    return lost


def test_a_comparison_above_the_last_line_is_unseen() -> None:
    seen = {"cell_type": "code", "source": ['x = 1\nbeside("a", measured=x)']}
    lost = {"cell_type": "code", "source": ['beside("b", measured=x)\nprint(x)']}
    assert unseen([seen, lost]) == ["beside('b', measured=x)"]


@pytest.mark.parametrize("path", LESSONS, ids=by_stem)
def test_every_comparison_is_shown(path: Path) -> None:
    assert unseen(cells_of(path)) == []


@pytest.mark.parametrize("path", LESSONS, ids=by_stem)
def test_a_lesson_asks_for_a_guess_and_lays_each_beside_what_happened(path: Path) -> None:
    asked, compared = guesses(cells_of(path))
    assert asked
    assert asked == compared


@pytest.mark.parametrize("path", LESSONS, ids=by_stem)
def test_a_cell_is_read_at_a_glance(path: Path) -> None:
    assert len(long_cells(cells_of(path))) == LONG_CELLS.get(path.stem, 0), long_cells(cells_of(path))


def test_a_long_cell_and_a_guess_that_nobody_compares_are_found() -> None:
    def code(source: str, *tags: str) -> Cell:
        return {"cell_type": "code", "source": [source], "metadata": {"tags": list(tags)}}

    assert long_cells([code("a = 1\n\n" * 30)]) == []
    assert long_cells([code("a = 1\n\n" * 31), code("a = 1\n" * 40, "script")]) == [31]
    assert guesses([code("%%guess one --unit B\n..."), code('beside("two", measured=2)')]) == (
        ["one"],
        ["two"],
    )
