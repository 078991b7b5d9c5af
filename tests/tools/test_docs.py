"""The pages of `make docs`, built once: nothing is missing, nothing leads nowhere, nothing comes from elsewhere."""

import ast
import base64
import json
import re
from pathlib import Path

import nbformat
import pytest

from tools.docs.build import ROOT, build
from tools.docs.checked import check
from tools.docs.import_picture import draw, rows_of
from tools.docs.lessons import MOVES, as_page, read_lessons
from tools.docs.positions import MEASURED, OF_THE_TEXT, WIDGET, slider_html, stands_on
from tools.docs.positions import draw as positions_of
from tools.docs.reference import marked_up
from tools.docs.rooms import read_house
from tools.docs.tables import benchmark_page, shown

LESSONS = read_lessons(ROOT / "notebooks")


def test_a_slider_stands_on_what_a_loop_fills_and_on_what_that_takes():
    above = ["seconds = [3, 4]", "calls = {}", "for n in seconds:\n    calls[n] = n + 1", "other = 5"]
    assert [ast.unparse(one) for one in stands_on("draw(calls)", above)] == above[:3]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of the pages; Sphinx has had nothing to complain of."""
    folder = tmp_path_factory.mktemp("docs")
    assert build(folder) == 0
    return folder / "html"


def text_of(built: Path, name: str) -> str:
    return (built / name).read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_links_anchors_pictures_words_and_what_is_loaded(built):
    found = check(built)
    assert found.problems == []
    assert found.pictures >= 100
    assert found.outside >= 20


@pytest.mark.slow
def test_no_page_is_missing(built):
    pages = {path.relative_to(built).with_suffix("").as_posix() for path in built.rglob("*.html")}
    wanted = {f"notebooks/{lesson.day}/{lesson.name}" for lesson in LESSONS}
    wanted |= {f"notebooks/{lesson.day}/index" for lesson in LESSONS}
    wanted |= {f"rooms/{room}" for room in read_house(ROOT).rooms}
    wanted |= {f"reference/workshop.{room}" for room in read_house(ROOT).rooms}
    wanted |= {f"measured/{path.stem}" for path in (ROOT / "data/measurements").glob("*.json")}
    wanted |= {"index", "README", "search", "notebooks/glossary", "measured/validate", "measured/left_out"}
    wanted |= {"measured/blind_rows"}
    assert wanted - pages == set()


@pytest.mark.slow
def test_a_lesson_leads_on_shows_its_outputs_and_can_be_searched(built):
    for before, lesson, after in zip(LESSONS, LESSONS[1:], LESSONS[2:], strict=False):
        text = text_of(built, f"notebooks/{lesson.day}/{lesson.name}.html")
        before_is = before.name if before.day == lesson.day else "index"
        after_is = after.name if after.day == lesson.day else "index"
        related = re.search(r'(?s)<div class="related-pages">.*?</div>\s*<div class="bottom-of-page', text)[0]
        assert f'{after_is}.html">' in related
        assert f'{before_is}.html">' in related or 'href="#">' in related
        assert "theme-toggle" in text  # light, dark, or as the system is
    ddp = text_of(built, "notebooks/day2_data_parallel/22_ddp.html")
    assert "[rank 3] first weights" in ddp
    assert "bucket" in text_of(built, "searchindex.js")


@pytest.mark.slow
def test_beside_a_page_stand_the_titles_of_all_lessons_without_its_own_headings(built):
    text = text_of(built, "notebooks/day2_data_parallel/22_ddp.html")
    tree = re.search(r'(?s)<div class="sidebar-tree">(.*?)</div>', text)[1]
    led = re.findall(r'href="([^"]*)"', tree.replace('<use href="#svg-arrow-right">', ""))
    assert {"index.html", "../../reference/workshop.launch.fresh.html"} <= set(led)
    assert {f"{one.name}.html" for one in LESSONS} - {Path(each).name for each in led} == {"22_ddp.html"}
    assert [each for each in led if each.startswith("#")] == ["#"]  # the page itself


@pytest.mark.slow
def test_sliders_can_be_moved_where_they_need_no_measurement(built):
    moving, still = [], []
    for lesson in LESSONS:
        if WIDGET in lesson.path.read_text(encoding="utf-8"):
            text = text_of(built, f"notebooks/{lesson.day}/{lesson.name}.html")
            (moving if 'class="positions"' in text else still).append(lesson.name)
            if lesson.name not in OF_THE_TEXT:
                assert (MOVES in text) == (lesson.name in MEASURED)
    assert [name for name in still if name not in OF_THE_TEXT] == list(MEASURED)
    assert len(moving) >= 10


@pytest.mark.slow
def test_the_reference_knows_names_that_lessons_call(built):
    launch = text_of(built, "reference/workshop.launch.fresh.html")
    assert 'id="workshop.launch.fresh.torchrun.torchrun"' in launch
    assert 'id="workshop.facts.layout.Layout"' in text_of(built, "reference/workshop.facts.html")


def test_a_stored_slider_becomes_its_picture_with_words(tmp_path):
    pixel = base64.b64encode(b"PNG").decode()
    data = {
        "application/vnd.jupyter.widget-view+json": {"model_id": "1"},
        "image/png": pixel,
        "text/plain": "[picture: a < b]",
    }
    cell = nbformat.v4.new_code_cell(outputs=[nbformat.v4.new_output("execute_result", data)])
    notebook = nbformat.v4.new_notebook(cells=[cell])
    notebook.metadata.language_info = nbformat.NotebookNode()
    as_page(notebook, "11_x", tmp_path)
    (output,) = notebook.cells[0].outputs
    assert set(output.data) == {"text/html", "text/plain"}
    assert 'alt="a &lt; b"' in output.data["text/html"]
    assert MOVES in output.data["text/html"]
    assert (tmp_path / "11_x-1.png").read_bytes() == b"PNG"


SLIDER = """from workshop.jupyter.explorer import Control, explore
from workshop.show.style import Picture, new_figure

def draw(billions, stage):
    figure, _ = new_figure(1.0, 1.0)
    return Picture(figure, f"{billions} billions, stage {stage}, {sum(sizes)} bytes")

explore(draw, [Control("billions", 7, range(1, 71)), Control("stage", 0, (0, 1))])"""
ABOVE = (
    "sizes = [0]\nbytes_of = 4",
    "sizes = [bytes_of]\nfor at in range(3): raise ValueError('not run')",
    "def other():\n    billions = 3\n    return unknown\n\nbillions = other()",
    "%%exercise alpha_beta\n...",
    "sizes[0] += 2\nsizes += [1]",
)


def slider(tmp_path, stored):
    """A lesson with a slider, and what its page says of it."""
    cells = [nbformat.v4.new_code_cell(source) for source in (*ABOVE, SLIDER)]
    data = {WIDGET: {"model_id": "1"}, "image/png": "", "text/plain": stored}
    cells[-1].outputs = [nbformat.v4.new_output("execute_result", data)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "99_x.ipynb")
    return tmp_path / "99_x.ipynb"


def test_a_slider_is_drawn_at_more_positions(tmp_path):
    stored = "[sliders for billions, stage: 7 billions, stage 0, 7 bytes]"
    [positions] = positions_of(slider(tmp_path, stored), tmp_path)
    billions = [one for one in positions if one.control == "billions"]
    assert [one.value for one in billions] == ["7", "18", "35", "53", "70"]
    assert [(one.value, one.words) for one in positions[5:]] == [
        ("0", "7 billions, stage 0, 7 bytes"),
        ("1", "7 billions, stage 1, 7 bytes"),
    ]
    assert [one.stored for one in positions] == [True, False, False, False, False, True, False]
    assert all((tmp_path / one.file).read_bytes().startswith(b"\x89PNG") for one in positions)
    shown = slider_html(positions, "pictures", "slider1")
    assert shown.count('<input type="radio" name="slider1"') == 7
    assert shown.count(" checked>") == 1
    assert (
        'id="slider1-6"><label for="slider1-6">1</label><figure><img src="pictures/99_x-slider1-6.png"'
        in shown
    )
    assert 'alt="7 billions, stage 1, 7 bytes"' in shown


def test_a_slider_that_shows_something_else_now_is_refused(tmp_path):
    stored = "[sliders for billions, stage: 7 billions, stage 0, 9 bytes]"
    with pytest.raises(ValueError, match=r"99_x: the page has .* 9 bytes.*drawn now it is .* 7 bytes"):
        positions_of(slider(tmp_path, stored), tmp_path)


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ('<a href="gone.html">x</a>', "no page gone.html"),
        ('<a href="#gone">x</a>', "no place #gone"),
        ('<a href="https://nowhere">x</a>', "is no address"),
        ('<img src="a.png">', "a picture without words: a.png"),
        ('<img src="gone.png" alt="x">', "no file gone.png"),
        ('<script src="https://cdn.example.org/x.js"></script>', "loads https://cdn.example.org/x.js"),
        ('<link rel="stylesheet" href="//fonts.example.org/x.css">', "loads //fonts.example.org/x.css"),
        ('<svg role="img"></svg>', "a drawing without words"),
        ("<p>File /home/ada/x.py</p>", "names /home/ada/x.py"),
    ],
)
def test_what_is_wrong_with_a_page_is_found(tmp_path, page, said):
    (tmp_path / "a.png").touch()
    (tmp_path / "index.html").write_text(page, encoding="utf-8")
    (problem,) = check(tmp_path).problems
    assert said in problem


def test_a_good_page_has_no_problem(tmp_path):
    (tmp_path / "a.png").touch()
    good = '<p id="x"></p><a href="#x">x</a><img src="a.png" alt="x"><a href="https://pytorch.org/docs">y</a>'
    (tmp_path / "index.html").write_text(good, encoding="utf-8")
    assert check(tmp_path).problems == []


def test_docstrings_are_prose_with_names():
    names = {"Layout": "workshop.facts.layout.Layout"}
    assert marked_up("A `Layout`, a `thing`.", names).strip() == (
        "A :py:obj:`Layout <workshop.facts.layout.Layout>`, a ``thing``."
    )
    assert marked_up("max_ of |x|, *args", names).strip() == "max\\_ of \\|x\\|, \\*args"
    assert marked_up("For::\n\n    `a` | b\n\nthen |c|", names).splitlines()[2] == "    `a` | b"


def test_a_picture_puts_importers_above_and_cuts_a_ring():
    uses = {"cli": {"launch"}, "launch": {"facts"}, "facts": set(), "one": {"two"}, "two": {"one"}}
    rows = rows_of(uses)
    places = {name: number for number, row in enumerate(rows) for name in row}
    assert places["cli"] < places["launch"] < places["facts"]
    assert places["one"] != places["two"]
    picture = draw(rows, uses, 'said "so"', lambda name: f"{name}.html")
    assert picture.count("<rect") == 5
    assert 'aria-label="said &quot;so&quot;"' in picture


def test_measurements_of_any_shape_become_tables(tmp_path):
    found = {"date": "today", "results": {"a": {"x": 1.23456}, "b": {"y": [1, 2]}}, "plain": 12345}
    (tmp_path / "two_things.json").write_text(json.dumps(found), encoding="utf-8")
    page = benchmark_page(tmp_path / "two_things.json")
    assert "| a | 1.235 |  |" in page
    assert "| b |  | 1; 2 |" in page
    assert "| plain | 12,345 |" in page
    assert shown(list(range(10))) == "10 values, 0 to 9"
