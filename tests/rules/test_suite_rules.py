"""The suite itself: a second try is for single tests and has its reason; no test wants a foreground process."""

import ast
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.schedule import LONGEST_FIRST, TOGETHER
from tests.second_try import KEPT_IN, MARKER

ROOT = Path(__file__).parents[2]
SHORTEST_REASON = 30  # characters; "flaky" is no reason


def marker_problems(source):
    """What is wrong with each use of `second_try` (or of the plugin's own `flaky`) in a file of tests."""
    tree = ast.parse(source)
    on_tests = {
        id(decorator)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        for decorator in node.decorator_list
    }
    calls = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or node.attr not in (MARKER, "flaky"):
            continue
        call = calls.get(id(node))
        if node.attr == "flaky":
            yield node.lineno, f"say {MARKER}(reason=...), which is counted"
        elif call is None or id(call) not in on_tests:
            yield node.lineno, "marks more than one test, or gives no reason"
        elif not any(
            word.arg == "reason" and len(getattr(word.value, "value", "")) >= SHORTEST_REASON
            for word in call.keywords
        ):
            yield node.lineno, f"gives no reason of at least {SHORTEST_REASON} characters"


def test_second_tries_stand_on_single_tests_and_have_reasons():
    files = [path for path in sorted((ROOT / "tests").rglob("*.py")) if path.name != "second_try.py"]
    problems = [
        f"{path.relative_to(ROOT)}:{line}: {what}"
        for path in files
        for line, what in marker_problems(path.read_text())
    ]
    assert problems == []


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("@pytest.mark.{m}(reason='the kernel of the host drops a packet')\ndef test_a(): ...", None),
        ("@pytest.mark.{m}\ndef test_a(): ...", "gives no reason"),
        ("@pytest.mark.{m}(reason='flaky')\ndef test_a(): ...", "at least 30 characters"),
        (
            "pytestmark = pytest.mark.{m}(reason='the kernel of the host drops a packet')",
            "more than one test",
        ),
        (
            "@pytest.mark.{m}(reason='the kernel of the host drops a packet')\nclass TestA: ...",
            "more than one",
        ),
        ("@pytest.mark.flaky(reruns=3)\ndef test_a(): ...", "which is counted"),
    ],
)
def test_bad_marks_are_seen(source, words):
    found = [what for _, what in marker_problems(source.replace("{m}", MARKER))]
    assert (found == []) if words is None else (len(found) == 1 and words in found[0])


def test_the_files_that_begin_are_there():
    assert [name for name in LONGEST_FIRST if not (ROOT / name).is_file()] == []
    assert [name for group in TOGETHER for name in group if not (ROOT / name).exists()] == []
    assert len(set(LONGEST_FIRST)) == len(LONGEST_FIRST)


ORDERED = "import pytest\n@pytest.mark.parametrize('n', range(2))\ndef test_{}(n): ...\n"


def ran(done):
    """(worker, test) of each test in the order of their reports, from ``pytest -n ... -vv``."""
    return re.findall(r"^\[(gw\d)\] .* PASSED (\S+)", done.stdout, re.MULTILINE)


def suite_of(tmp_path, **counts):
    """Files of so many tests each in place of the suite; what ran on two workers (or as many as ``workers``)."""
    workers = counts.pop("workers", 2)
    for name, count in counts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(ORDERED.replace("{}", "it").replace("2", str(count)))
    options = ("--rootdir", tmp_path, "-c", ROOT / "pyproject.toml", "-p", "tests.conftest", "-vv")
    done = run_pytest(*options, "-n", workers, "--dist", "loadfile", tmp_path)
    found = ran(done)
    assert len(found) == sum(counts.values()), done.stdout
    return [(worker, test.split(f"{tmp_path.name}/")[-1]) for worker, test in found]


def test_the_longest_files_begin_and_their_tests_stay_in_order(tmp_path):
    """Under xdist too, which by itself begins with the files that have the most tests."""
    names = ("tests/aaa/test_many.py", "tests/configs/test_used.py", LONGEST_FIRST[0])
    found = suite_of(tmp_path, workers=1, **dict(zip(names, (9, 2, 2), strict=True)))
    assert [test for _, test in found][:4] == [
        f"{name}::test_it[{n}]" for name in names[:0:-1] for n in range(2)
    ]


def test_what_shares_the_slurm_is_one_workers_and_begins(tmp_path):
    first, *others = TOGETHER[0][:3]
    assert first == LONGEST_FIRST[0]
    found = suite_of(
        tmp_path, **{"tests/aaa/test_plain.py": 2, LONGEST_FIRST[1]: 2}, **dict.fromkeys((first, *others), 2)
    )
    (worker,) = {worker for worker, test in found if test.split("::")[0] in TOGETHER[0]}
    mine = [test for one, test in found if one == worker]
    assert [test.split("::")[0] for test in mine[:6]] == [
        name for name in sorted((first, *others)) for _ in range(2)
    ]
    assert LONGEST_FIRST[1] in {test.split("::")[0] for one, test in found if one != worker}


def test_every_file_that_wants_a_scheduler_of_its_own_is_with_the_others():
    """Two workers would bring up two of them."""
    for fixture, group in zip(("slurm", "grid_engine"), TOGETHER, strict=False):
        asks = re.compile(rf"def \w+\([^)]*\b{fixture}\b[^)]*\)|getfixturevalue\(\"{fixture}\"\)")
        files = [path for path in (ROOT / "tests").rglob("test_*.py") if asks.search(path.read_text())]
        assert len(files) > 1
        assert {str(path.relative_to(ROOT)) for path in files} <= set(group), fixture


SHAKY = """
import pathlib, pytest

@pytest.mark.second_try(reason="fails the first time that it is run in a folder")
def test_shaky():
    before = pathlib.Path(__file__).with_name("before")
    seen = before.exists()
    before.touch()
    assert seen

def test_plain():
    assert False
"""


# Three seconds of a core to import, in each of these processes, and nothing here asks for them.
WITHOUT = [f"-pno:{plugin}" for plugin in ("cacheprovider", "nbval", "nbmake", "hypothesispytest", "anyio")]


def run_pytest(*arguments, **options):
    command = [sys.executable, "-m", "pytest", "-q", *WITHOUT, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, **options)


def test_only_what_is_marked_runs_again_and_the_end_counts_it(tmp_path):
    file, kept = tmp_path / "test_shaky.py", tmp_path / "kept"
    file.write_text(SHAKY)
    done = run_pytest(
        *("-n", 1, "-c", "pyproject.toml", "-p", "tests.conftest", file),
        env={**os.environ, KEPT_IN: str(kept)},
    )
    assert "1 failed, 1 passed, 1 rerun" in done.stdout, done.stdout + done.stderr
    assert "needed a second try: 1" in done.stdout
    (line,) = kept.read_text().splitlines()
    assert "test_shaky: fails the first time" in line
    file.write_text(SHAKY.replace('reason="fails the first time that it is run in a folder"', ""))
    refused = run_pytest("-c", "pyproject.toml", "-p", "tests.conftest", file)
    assert "second_try needs a reason" in refused.stdout + refused.stderr


@pytest.mark.parametrize("test", ["test_stop_button_interrupts_and_keeps_state and sleep"])
def test_the_stop_button_is_tested_also_from_a_background_job(test):
    """A shell's `pytest ... &` starts with SIGINT ignored."""
    (file,) = (ROOT / "tests" / "launch").rglob("test_ranks.py")
    done = run_pytest(file, "-k", test, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    assert done.returncode == 0, done.stdout[-3000:]
    assert "1 passed" in done.stdout
