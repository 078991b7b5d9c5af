import subprocess
import sys

import pytest

from workshop import __version__
from workshop.cli import main


def test_version(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"workshop {__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["lab", "--help"],
        ["doctor", "--help"],
        ["export", "--help"],
        ["predict", "--help"],
        ["plan", "--help"],
        ["validate", "--help"],
        ["calibrate", "--help"],
    ],
)
def test_help_reads_well(capsys, arguments):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert said.startswith("usage: workshop")
    assert "%%%" not in said
    assert max(map(len, said.splitlines())) <= 100


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "COMMAND"),
        (["labb"], "invalid choice: 'labb'"),
        (["docter"], "did you mean 'doctor'?"),
        (["monitor", "--nope"], "workshop monitor: error: unrecognized arguments: --nope"),
        (["lab", "--port", "0"], "'0' is no port: give a number from 1 to 65535"),
        (["lab", "--port", "many"], "'many' is no port"),
    ],
)
def test_a_wrong_call_is_told(capsys, arguments, said):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_python_dash_m():
    done = subprocess.run(
        [sys.executable, "-m", "workshop", "--version"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, f"workshop {__version__}\n")
