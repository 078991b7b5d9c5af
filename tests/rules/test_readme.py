"""What the README says of times is what was measured; its table, links and pictures are those of the lessons."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import nbformat

from tools.docs.lessons import days, hours, read_lessons
from tools.lesson_links import dead_links

ROOT = Path(__file__).resolve().parents[2]


def costs(measured: dict[str, Any]) -> list[str]:
    """The README's four times of a launch, in its order and with its digits."""
    fresh, plain = measured["torchrun_cell"]["next"]["median"], measured["torchrun"]["median"]
    staying = measured["ranks_in_notebook"]
    seconds = [f"{fresh:.1f} s", f"{plain:.1f} s"]
    return seconds + [f"{1000 * staying[part]['median']:.1f} ms" for part in ("magic", "empty_cell")]


def test_the_costs_of_a_launch_are_those_of_the_record() -> None:
    measured = json.loads((ROOT / "data/measurements/launch.json").read_text(encoding="utf-8"))["results"]
    (paragraph,) = re.findall(r"(?s)What it costs, on two cores: .*?\n\n", (ROOT / "README.md").read_text())
    assert re.findall(r"\d+\.\d m?s", paragraph) == costs(measured)


def lines_of_the_table() -> list[str]:
    """The README's lessons: link, name and minutes of each, and each day's sum."""
    lines = []
    for _, lessons in days(read_lessons(ROOT / "notebooks")):
        lines.append(f"**{hours(sum(lesson.minutes for lesson in lessons))}**")
        lines += [f"[`{x.name}`](notebooks/{x.day}/{x.name}.ipynb) {x.minutes}" for x in lessons]
    return lines


def test_the_runs_of_lessons_on_a_gpu_are_those_of_the_record() -> None:
    record = json.loads((ROOT / "data" / "measurements" / "gpu" / "lessons.json").read_text("utf-8"))
    ended = [part["status"] for part in record["parts"].values()]
    assert f"{ended.count('done')} of {len(ended)} runs of lessons" in (ROOT / "README.md").read_text()


def test_every_lesson_is_listed_with_its_link_and_its_own_minutes() -> None:
    rows = re.findall(
        r"(?m)^\| (.+?) \| (.*?) \| (.+?) \|$", (ROOT / "README.md").read_text(encoding="utf-8")
    )
    found = [minutes if first.startswith("**Day") else f"{first} {minutes}" for first, _, minutes in rows]
    assert [line for line in found if line.startswith(("**", "[`"))] == lines_of_the_table()


def test_every_example_of_a_site_is_listed() -> None:
    (table,) = re.findall(
        r"(?s)\| example \| for \|\n(.*?)\n\n", (ROOT / "README.md").read_text(encoding="utf-8")
    )
    listed = re.findall(r"(?m)^\| `([\w-]+)` \|", table)
    assert sorted(listed) == sorted(path.stem for path in (ROOT / "examples/sites").glob("*.toml"))


def test_its_links_lead_somewhere_and_its_pictures_are_a_lessons_outputs() -> None:
    assert dead_links(ROOT / "README.md") == []
    welcome = nbformat.read(ROOT / "notebooks/day0_welcome/00_welcome.ipynb", as_version=4)
    data = [output.get("data", {}) for cell in welcome.cells for output in cell.get("outputs", ())]
    stored = [base64.b64decode(one["image/png"]) for one in data if "image/png" in one]
    pictures = re.findall(
        r"!\[[^\]]+\]\((docs/pictures/\S+)\)", (ROOT / "README.md").read_text(encoding="utf-8")
    )
    assert len(pictures) == 2
    assert [(ROOT / picture).read_bytes() for picture in pictures] == stored
