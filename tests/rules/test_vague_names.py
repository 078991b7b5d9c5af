"""A name tells what it holds: the rule is kept here, and sees what breaks it."""

from pathlib import Path

import pytest

from tools.vague_names import vague_name_problems

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("folder", ["workshop", "tools", "benchmarks"])
def test_no_name_is_vague(folder):
    assert [str(problem) for problem in vague_name_problems(ROOT / folder)] == []


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("found = 1", ["found"]),
        ("def f(said): return said", ["said"]),
        ("for told in range(3): print(told)", ["told"]),
        ("[asked for asked in range(3)]", ["asked"]),
        ("x.found = 1\nprint(x.said)", []),
        ("f(found=1)", []),
        ("found_at = 1", []),
        ("class Finding:\n    found: str", []),
    ],
)
def test_what_the_rule_sees(tmp_path, text, names):
    (tmp_path / "module.py").write_text(text)
    assert [one.what.split("'")[1] for one in vague_name_problems(tmp_path)] == names
