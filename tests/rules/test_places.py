"""Tests stand in the room of what they test, and reach every module; bad examples are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.places_of_tests import misplaced, out_of_reach

ROOT = Path(__file__).parents[2]


def test_the_tests_stand_where_they_belong() -> None:
    assert list(misplaced(ROOT / "workshop", ROOT / "tests")) == []


def test_every_module_is_in_reach_of_a_test_or_a_lesson() -> None:
    programs = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "notebooks" / "source").rglob("*.py")]
    assert out_of_reach(ROOT / "workshop", programs) == []


def laid(folder: Path, files: dict[str, str]) -> tuple[Path, Path]:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(text)
    return folder / "workshop", folder / "tests"


HOUSE = {
    "workshop/a/one.py": "",
    "workshop/b/two.py": "",
    "tests/a/test_one.py": "",
    "tests/b/test_both.py": "",
}


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({}, []),
        ({"tests/rules/test_sizes.py": ""}, []),
        ({"tests/gone/test_x.py": ""}, ["tests/gone: no room of that name"]),
        ({"workshop/c/three.py": ""}, ["workshop/c: has no folder in tests"]),
        (
            {"tests/a/test_two.py": ""},
            ["tests/a/test_two.py: a module two is not in this room; tests/b, or another name"],
        ),
        ({"workshop/a/deep/__init__.py": "", "tests/a/test_deep.py": ""}, []),
    ],
)
def test_misplaced(tmp_path: Path, more: dict[str, str], told: list[str]) -> None:
    assert list(misplaced(*laid(tmp_path, HOUSE | more))) == told


@pytest.mark.parametrize(
    ("test", "missed"),
    [
        ("", ["workshop.a", "workshop.a.one", "workshop.b", "workshop.b.two"]),
        ("import workshop.a.one", ["workshop.b", "workshop.b.two"]),
        ("from workshop.b import two", []),  # which imports the other
        ("program = 'from workshop.b import two'", []),
        ("command = ['-m', 'workshop.b.two']", []),
        ("door = f'workshop.b.{name}'", []),
        ("door = f'workshop.{name}.two'", []),
        ("door = f'from workshop.{name}.one import f'", ["workshop.b", "workshop.b.two"]),
        ('"""As workshop.b.two does."""', ["workshop.a", "workshop.a.one", "workshop.b", "workshop.b.two"]),
    ],
)
def test_out_of_reach(tmp_path: Path, test: str, missed: list[str]) -> None:
    files = {**HOUSE, "workshop/b/two.py": "from workshop.a import one", "tests/a/test_one.py": test}
    package, tests = laid(tmp_path, files)
    assert [name for name in out_of_reach(package, tests.rglob("*.py")) if name != "workshop"] == missed
