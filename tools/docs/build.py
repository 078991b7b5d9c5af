"""Write the sources of the pages into ``build/docs/source``, and let Sphinx make ``build/docs/html`` of them.

The sources lie as the files lie in the tree (``notebooks/``, ``README.md``), so that the links of lessons and
of the README lead on the pages where they lead in a clone.
"""

from __future__ import annotations

import argparse
import gc
import re
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sphinx.application import Sphinx

from tools.docs import lessons, reference, rooms, tables
from tools.docs.checked import check

ROOT = Path(__file__).resolve().parents[2]
PAGES_OF_THE_TREE = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "INSTRUCTORS.md",
    "LICENSE",
)


def write_sources(into: Path) -> None:
    """Write every source of a page, anew."""
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    for name in PAGES_OF_THE_TREE:
        text = (ROOT / name).read_text(encoding="utf-8")
        (into / name).write_text(without_folders(text), encoding="utf-8")
    shutil.copytree(ROOT / "docs" / "_static", into / "_static")
    shutil.copytree(ROOT / "docs" / "pictures", into / "docs" / "pictures")
    write_lessons(into)
    write_rooms(into)
    write_reference(into)
    write_tables(into)


def without_folders(text: str) -> str:
    """A page without links to what is no page: folders and programs keep their names."""
    text = text.replace("](notebooks)", "](index.md)")
    return re.sub(
        r"\[([^\]]+)\]\(([\w./-]+)\)", lambda link: link[0] if _is_page(ROOT / link[2]) else link[1], text
    )


def _is_page(path: Path) -> bool:
    """Whether a link to this may stay: to a page, a picture, a licence, or to what the tree does not know."""
    return not path.exists() or path.suffix in (".md", ".ipynb", ".png") or path.name == "LICENSE"


def write_lessons(into: Path) -> None:
    """Lessons, days, the glossary and the first page."""
    folder = ROOT / "notebooks"
    lessons.write_lessons(folder, into / "notebooks", into / "_static" / "pictures")
    shutil.copy(folder / "glossary.md", into / "notebooks" / "glossary.md")
    known, of_day = lessons.read_lessons(folder), lessons.read_days(ROOT / "docs" / "days.toml")
    lines, places = [], []
    for day, some in lessons.days(known):
        (into / "notebooks" / day / "index.md").write_text(lessons.day_page(of_day[day], some), "utf-8")
        minutes = lessons.hours(sum(lesson.minutes for lesson in some))
        link = f"[{of_day[day]['title']}](notebooks/{day}/index.md)"
        lines.append(f"| {link} | {of_day[day]['teaches']} | {len(some)} | {minutes} |")
        places.append(f"notebooks/{day}/index")
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    text = text.replace("<!-- days -->", "\n".join(lines)).replace("<!-- places -->", "\n".join(places))
    (into / "index.md").write_text(text, encoding="utf-8")


def write_rooms(into: Path) -> None:
    """The page of the house, and one for each room."""
    (into / "rooms").mkdir()
    house = rooms.read_house(ROOT)
    used = rooms.lessons_by_room(ROOT / "notebooks" / "source", house.rooms)
    (into / "rooms" / "index.rst").write_text(rooms.house_page(house), encoding="utf-8")
    for room in house.rooms:
        page = rooms.room_page(house, room, used[room])
        (into / "rooms" / f"{room}.rst").write_text(page, encoding="utf-8")


def write_reference(into: Path) -> None:
    """A page for each folder of the package."""
    (into / "reference").mkdir()
    names = []
    for folder, modules in reference.modules_by_folder(ROOT).items():
        names.append(".".join(folder.relative_to(ROOT).parts))
        page = reference.folder_page(folder, modules, ROOT)
        (into / "reference" / f"{names[-1]}.rst").write_text(page, encoding="utf-8")
    listed = "\n".join(f"   {name}" for name in sorted(names))
    head = "Reference\n=========\n\nEvery public name, by folder of the package."
    text = f"{head}\n\n.. toctree::\n   :maxdepth: 1\n\n{listed}\n"
    (into / "reference" / "index.rst").write_text(text, encoding="utf-8")


def write_tables(into: Path) -> None:
    """What was predicted again, broken on purpose, and measured."""
    folder, data = into / "measured", ROOT / "data" / "measurements"
    folder.mkdir()
    pages = {
        "validate": tables.validate_page(),
        "left_out": (data / "predict_report.md").read_text(encoding="utf-8"),
        "blind_rows": (data / "blind_rows.md").read_text(encoding="utf-8"),
        "serving_published": tables.serving_page(),
        "faults": tables.faults_page(data / "faults.json"),
    }
    for file in sorted(data.glob("*.json")):
        pages.setdefault(file.stem, tables.benchmark_page(file))
    for name, text in pages.items():
        (folder / f"{name}.md").write_text(text, encoding="utf-8")
    places = "\n".join(pages)
    text = f"# Measured and predicted\n\n```{{toctree}}\n:maxdepth: 1\n\n{places}\n```\n"
    (folder / "index.md").write_text(text, encoding="utf-8")


def build(into: Path, parallel: int = 1) -> int:
    """Write the sources and make the pages; how many warnings Sphinx had."""
    write_sources(into / "source")
    shutil.rmtree(into / "html", ignore_errors=True)
    app = Sphinx(
        str(into / "source"),
        str(ROOT / "docs"),
        str(into / "html"),
        str(into / "doctrees"),
        "html",
        status=None,
        confoverrides={"html_static_path": [str(into / "source" / "_static")]},
        freshenv=True,
        parallel=parallel,
    )
    with _fewer_collections():
        app.build(force_all=True)
    return int(app._warncount)


@contextmanager
def _fewer_collections() -> Iterator[None]:
    """Look for garbage in cycles after many more new objects than Python does.

    Pages are read into trees of millions of objects, and Python's collector goes through what lives each
    time: a quarter of the build. So seldom, it is a twentieth, and the most memory grows from 382 MB to 402.
    """
    before = gc.get_threshold()
    gc.set_threshold(200_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def main() -> int:
    """The command: build, check, say what there is."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.docs", description="Build the pages and check them."
    )
    parser.add_argument("--into", type=Path, default=ROOT / "build" / "docs", help="where the pages go")
    parser.add_argument("--parallel", type=int, default=2, help="processes that read and write pages")
    options = parser.parse_args()
    began = time.monotonic()
    warnings = build(options.into.resolve(), options.parallel)
    checked = check(options.into.resolve() / "html")
    for problem in checked.problems:
        print(f"docs: {problem}", file=sys.stderr)
    print(
        f"docs: {checked.pages} pages, {checked.links:,} links, {checked.pictures} pictures, "
        f"{len(checked.problems)} problems, {warnings} warnings, {time.monotonic() - began:.0f} s"
    )
    print(f"docs: open {options.into / 'html' / 'index.html'}")
    return 1 if checked.problems or warnings else 0
