"""Importing the package is cheap: what is heavy is loaded when it is first used."""

import subprocess
import sys

import pytest

HEAVY = {"torch", "numpy", "matplotlib", "IPython", "ipykernel", "jupyter_client", "pandas"}


def loaded_by(statement):
    """The heavy modules that ``statement`` leaves in a fresh Python."""
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return HEAVY & set(done.stdout.split())


@pytest.mark.parametrize(
    "statement", ["import workshop", "import workshop.facts.units", "import workshop.cli"]
)
def test_nothing_heavy(statement):
    assert loaded_by(statement) == set()


def test_launch_needs_no_torch():
    assert "torch" not in loaded_by("import workshop; workshop.launch")


def test_the_test_sees_what_is_loaded():
    assert "numpy" in loaded_by("import numpy")


def test_an_unknown_name_lists_the_known_ones():
    import workshop

    with pytest.raises(AttributeError, match=r"no attribute 'lunch'; it has .*launch"):
        workshop.lunch  # noqa: B018
