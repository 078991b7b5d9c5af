"""Sizes, docstrings, swallowed errors, paths of one machine: kept here, found in bad examples."""

import subprocess
from pathlib import Path

import pytest

from tools.rules import docstring_problems, machine_path_problems, size_problems, swallow_problems

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "workshop"


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
