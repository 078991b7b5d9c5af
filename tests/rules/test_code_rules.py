"""Sizes, docstrings, swallowed errors, paths of one machine: kept here, found in bad examples."""

import subprocess
from pathlib import Path

import pytest

from tools.rules import (
    docstring_problems,
    machine_path_problems,
    ring_problems,
    size_problems,
    swallow_problems,
    unused_problems,
)

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "workshop"


def test_every_public_name_has_a_user():
    files = [
        path
        for folder in ("notebooks", "examples", "benchmarks", "tools", "docs")
        for kind in ("*.py", "*.md", "*.toml")
        for path in (ROOT / folder).rglob(kind)
    ]
    users = [*files, ROOT / "README.md", ROOT / "INSTRUCTORS.md", ROOT / "pyproject.toml"]
    assert [str(problem) for problem in unused_problems(PACKAGE, users)] == []


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("def merge(): 0", ["merge"]),
        ("class Merge: 0\nMOST = 3\nLEAST: int = 1", ["Merge", "MOST", "LEAST"]),
        ("def _merge(): 0\n_MOST = 3\nif True:\n    inner = 1", []),
        ("def merge(): 0\nmerge()", []),
        ('"""`merge` makes one of two."""\ndef merge(): 0', []),
        ('"""A file:\n\nname = 3\n"""', []),
        ("def told(): 0", []),  # by a page
    ],
)
def test_names_without_a_user(tmp_path, text, names):
    (tmp_path / "module.py").write_text(text)
    (tmp_path / "page.md").write_text("Call `told` yourself.")
    assert [one.where for one in unused_problems(tmp_path, [tmp_path / "page.md"])] == names


@pytest.mark.parametrize("rule", [size_problems, docstring_problems, swallow_problems])
@pytest.mark.parametrize("folder", ["workshop", "tools"])
def test_the_tree_keeps_the_rule(rule, folder):
    assert [str(problem) for problem in rule(ROOT / folder)] == []


def found(rule, folder, text):
    (folder / "bad.py").write_text(text)
    return [problem.what for problem in rule(folder)]


def test_sizes(tmp_path):
    assert found(size_problems, tmp_path, "x = 1\n" * 400) == []
    assert found(size_problems, tmp_path, "x = 1\n" * 401) == ["401 lines, at most 400"]
    assert found(size_problems, tmp_path, "def f():\n" + "    x = 1\n" * 39) == []
    assert found(size_problems, tmp_path, "def f():\n" + "    x = 1\n" * 40) == [
        "41 lines of code, at most 40"
    ]
    inside = "class C:\n    def f(self):\n" + "        x = 1\n" * 40
    assert found(size_problems, tmp_path, inside) == ["41 lines of code, at most 40"]
    worded = 'def f():\n    """A\n' + "    b\n" * 30 + '    """\n' + "    x = 1\n" * 20
    assert found(size_problems, tmp_path, worded) == []


def test_arguments(tmp_path):
    assert found(size_problems, tmp_path, "def f(a, b, /, c, d, *, e, g): 0") == []
    assert found(size_problems, tmp_path, "def f(a, b, /, c, d, *, e, g, h): 0") == ["7 arguments, at most 6"]
    assert found(size_problems, tmp_path, "class C:\n  def f(self, a, b, c, d, e, g): 0") == []
    assert found(size_problems, tmp_path, "class C:\n  async def f(self, a, b, c, d, e, g, h): 0") != []


def test_docstrings(tmp_path):
    assert found(docstring_problems, tmp_path, '"""D."""\ndef _f(): 0\nclass _C:\n  def f(self): 0') == []
    assert found(docstring_problems, tmp_path, "x = 1") == ["no docstring"]
    assert found(docstring_problems, tmp_path, '"""D."""\ndef f(): 0') == ["no docstring"]
    assert found(docstring_problems, tmp_path, '"""D."""\nclass C:\n  """D."""\n  def f(self): 0') == [
        "no docstring"
    ]
    assert found(docstring_problems, tmp_path, '"""D."""\ndef f():\n  """D."""\n  def inner(): 0') == []
    (tmp_path / "exercise.toml").touch()
    assert found(docstring_problems, tmp_path, "x = 1") == ["no docstring"]
    (tmp_path / "bad.py").rename(tmp_path / "answers.py")  # beside its settings an exercise's cells
    assert docstring_problems(tmp_path) == []
    (tmp_path / "exercise.toml").unlink()
    assert [problem.what for problem in docstring_problems(tmp_path)] == ["no docstring"]
    (tmp_path / "answers.py").unlink()
    google = '"""D.\n\nRaises:\n    ValueError: why.\n"""'
    assert found(docstring_problems, tmp_path, google) == []
    underlined = google.replace("Raises:", "Raises\n------")
    assert found(docstring_problems, tmp_path, underlined) == ["write the section as Google does: Raises:"]


@pytest.mark.parametrize(
    ("handler", "bad"),
    [
        ("except:\n  print()", True),
        ("except Exception:\n  pass", True),
        ("except BaseException:\n  ...", True),
        ("except (ValueError, Exception):\n  pass", True),
        ("except Exception as error:\n  print(error)", False),
        ("except ValueError:\n  pass", False),
    ],
)
def test_swallowed_errors(tmp_path, handler, bad):
    assert bool(found(swallow_problems, tmp_path, f"try:\n  f()\n{handler}\n")) == bad


def rings(folder, modules, allowed=None):
    """What the rule says of a package ``house`` with these modules, each a path and its text."""
    for module, text in modules.items():
        path = folder / "house" / module
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(text)
    return [problem.what for problem in ring_problems(folder / "house", allowed or {})]


def test_no_ring_in_the_package():
    assert [str(problem) for problem in ring_problems(PACKAGE)] == []


TYPES = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    "


@pytest.mark.parametrize(
    "back",
    [
        "from house.a import A",
        "from house import a",
        "import house.a",
        "import house.a as named",
        "from .a import A",
        "from . import a",
        f"{TYPES}from house.a import A",
        "def late():\n    from house.a import A",
        "class C:\n    def late(self):\n        import house.a",
        "try:\n    from house.a import A\nexcept ImportError:\n    A = None",
    ],
)
def test_a_ring_of_two_is_found_whatever_closes_it(tmp_path, back):
    modules = {"a.py": "from house.b import B", "b.py": back}
    assert rings(tmp_path, modules) == ["a ring: house.a -> house.b -> house.a"]


def test_a_ring_through_others_and_a_folder(tmp_path):
    modules = {
        "a.py": "import house.b",
        "b.py": "from house.room.c import C",
        "room/c.py": "from ..a import A",
    }
    assert rings(tmp_path, modules) == ["a ring: house.a -> house.b -> house.room.c -> house.a"]


def test_every_ring_is_found(tmp_path):
    apart = {"a.py": "import house.b", "b.py": "import house.a", "c.py": "import house.d"}
    assert rings(tmp_path, apart | {"d.py": "import house.c"}) == [
        "a ring: house.a -> house.b -> house.a",
        "a ring: house.c -> house.d -> house.c",
    ]
    meeting = {"a.py": "import house.b", "b.py": "import house.a, house.c", "c.py": "import house.b"}
    assert len(rings(tmp_path, meeting | {"d.py": ""})) == 2


def test_a_front_door_is_a_ring_once_its_own_modules_ask_it(tmp_path):
    door = f"{TYPES}from house.room.a import A"  # tells type checkers what the package gives late
    room = {"room/__init__.py": door, "room/a.py": "import house.room.b", "room/b.py": "import json"}
    assert rings(tmp_path, room) == []
    asks = room | {"room/b.py": "from house.room import A"}
    assert rings(tmp_path, asks) == ["a ring: house.room -> house.room.a -> house.room.b -> house.room"]


def test_a_ring_may_be_allowed_as_long_as_it_is_one(tmp_path):
    allowed = {("house.b", "house.a"): "a reason"}
    assert rings(tmp_path, {"a.py": "import house.b", "b.py": "import house.a"}, allowed) == []
    (broken,) = rings(tmp_path, {"a.py": "import json"}, allowed)
    assert "closes no ring" in broken
    (gone,) = rings(tmp_path, {"b.py": "import json"}, allowed)
    assert "closes no ring" in gone


def test_no_path_of_one_machine_in_the_tree():
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    if listed.returncode:
        pytest.skip("not a git checkout")
    # Tests invent paths, this one among them.
    files = [ROOT / name for name in listed.stdout.split("\0") if name and not name.startswith("tests/")]
    assert [str(problem) for problem in machine_path_problems(files)] == []


@pytest.mark.parametrize(
    ("line", "bad"),
    [
        ("data = '/home/ada/data'", True),
        ("open(" + "/" + "root/x)", True),
        ("/Users/ada", True),
        ("see " + "/" + "work/tree/file.py", True),
        ("/tmp/ada/run/1", True),
        ("/tmp", False),
        ("/dev/shm and /proc/meminfo", False),
        ("https://example.org/home/page", False),
        ("notebooks/work/x", False),
    ],
)
def test_paths_of_one_machine(tmp_path, line, bad):
    file = tmp_path / "bad.md"
    file.write_text(line)
    assert bool(machine_path_problems([file])) == bad
