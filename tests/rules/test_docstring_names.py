"""Names that docstrings set between backticks exist: in this tree, and missed in bad examples."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.docstring_names import dead_names

ROOT = Path(__file__).parents[2]


def test_docstrings_of_the_package_name_what_there_is() -> None:
    dead = [
        f"{path.relative_to(ROOT)}:{line}: {name}" for path, line, name in dead_names(ROOT / "workshop", ROOT)
    ]
    assert dead == []


ROOM = {
    "house/__init__.py": "",
    "house/room/__init__.py": "_LATE = {'drawn': 'house.room.part'}",
    "house/room/part.py": (
        "import json\nLIMIT = 3\nclass Wide:\n    size: int = 0\n    def __init__(self): self.made = 1\n"
        "    def grow(self): 0\nclass Under(Wide): 0\nif LIMIT:\n    def late(): 0"
    ),
    "house/room/time.py": "def taken(): 0",
    "tests/room/test_part.py": "",
}


def told(folder: Path, docstring: str, arguments: str = "") -> list[str]:
    """What is missed in a function's docstring of ``house/room/other.py``."""
    text = f'def f({arguments}):\n    """{docstring}"""\n'
    for name, content in {**ROOM, "house/room/other.py": text}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return [name for _, _, name in dead_names(folder / "house", folder)]


@pytest.mark.parametrize(
    "name",
    [
        *(
            "room.part.Wide",
            "part.Wide",
            "part.Wide.grow()",
            "part.Wide.made",
            "part.Wide.size",
            "part.LIMIT",
        ),
        *("house.room", "part.late", "room.drawn", "part.Under.of_its_base", "part.json"),
        *("room/part.py", "tests/room/test_part.py", "part.py", "their/own.py"),
        *("torch.nn.Linear", "time.perf_counter", "time.taken", "room.toml", "room/NAME.csv"),
    ],
)
def test_what_exists_or_is_not_ours_is_let_be(tmp_path: Path, name: str) -> None:
    assert told(tmp_path, f"As `{name}` and ``{name}`` do.") == []


@pytest.mark.parametrize(
    "name",
    [
        *("room.gone", "house.room.part.Gone", "part.gone", "part.Wide.shrink", "time.gone"),
        *("room/gone.py", "tests/room/test_gone.py", "house/room/part.toml"),
    ],
)
def test_what_does_not_exist_is_found(tmp_path: Path, name: str) -> None:
    assert told(tmp_path, f"As `{name}` and ``{name}`` do.") == [name, name]


def test_a_name_of_an_argument_is_no_module(tmp_path: Path) -> None:
    assert told(tmp_path, "Takes `part.gone`.", "part") == []
