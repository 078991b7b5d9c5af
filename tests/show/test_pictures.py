"""Every picture is listed once, draws itself, says in words what it shows, and stays torch-free and pyplot-free."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.show.examples import PICTURES
from workshop import show

ROOM = Path(show.__file__).parent
SHOW_THEMSELVES = {"Picture", "Drawing", "TraceLanes", "Table", "RecordedRun"}
NUMBERS = {"wire_bytes_by_axis", "layer_products"}  # what two of the pictures take
TABLES = {"traffic_table", "plan_table"}
RECORDS = {"recorded_run", "measured_on_gpu"}  # tests/show/test_recorded.py, test_gpu_records.py
DRAWINGS = {"monitor_strips", "trace_lanes", "icicle"}  # SVG: tests/measure


def written() -> Iterator[tuple[str, str]]:
    """The module and name of every public function that returns what shows itself."""
    for path in ROOM.rglob("*.py"):
        module = ".".join(["workshop.show", *path.relative_to(ROOM).with_suffix("").parts])
        for node in ast.parse(path.read_text("utf-8")).body:
            if not isinstance(node, ast.FunctionDef) or node.name.startswith("_") or not node.returns:
                continue
            if ast.unparse(node.returns) in SHOW_THEMSELVES:
                yield module, node.name


def test_every_picture_is_listed_once_under_its_module() -> None:
    listed = [(module, name) for module, names in show._BY_MODULE.items() for name in names]
    assert sorted((m, n) for m, n in listed if n not in NUMBERS) == sorted(written())
    assert sorted(name for _, name in listed) == sorted(show.__all__)


@pytest.mark.parametrize("name", show.__all__)
def test_every_listed_name_exists(name: str) -> None:
    module = importlib.import_module(show._MODULE_OF[name])
    assert getattr(show, name) is getattr(module, name)


def test_each_module_keeps_its_names_in_order() -> None:
    assert all(list(names) == sorted(names) for names in show._BY_MODULE.values())


def test_there_is_an_example_of_each_picture() -> None:
    assert set(PICTURES) == set(show.__all__) - NUMBERS - TABLES - RECORDS - DRAWINGS


@pytest.mark.parametrize("name", sorted(PICTURES))
def test_no_words_of_a_picture_are_dropped(name: str) -> None:
    """matplotlib leaves out an annotation whose point is outside the axes, and says nothing."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Annotation

    figure = PICTURES[name]().figure
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    words = [text for axis in figure.axes for text in axis.texts if isinstance(text, Annotation)]
    assert [text.get_text() for text in words if text.get_text() and not text._check_xy(renderer)] == []


@pytest.mark.parametrize("name", sorted(PICTURES))
def test_each_picture_is_a_png_and_has_words(name: str) -> None:
    for _ in range(2):  # a second call finds the function, not the module it lives in
        picture = PICTURES[name]()
    assert picture._repr_png_().startswith(b"\x89PNG")
    assert len(repr(picture)) > 20


def test_an_unknown_picture_lists_the_known() -> None:
    with pytest.raises(AttributeError, match=r"no picture 'bar_chart'; it has .*replicas"):
        show.bar_chart  # noqa: B018


def test_importing_show_loads_no_matplotlib_and_drawing_no_pyplot() -> None:
    code = (
        "import sys; from workshop import show; assert 'matplotlib' not in sys.modules\n"
        "show.parallel_cell()._repr_png_(); assert 'matplotlib.pyplot' not in sys.modules and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
