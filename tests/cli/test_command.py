import subprocess
import sys

import pytest

from workshop import __version__
from workshop.cli import COMMANDS, main


def test_version(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"workshop {__version__}\n"


@pytest.mark.parametrize("arguments", [["--help"], *([name, "--help"] for name in COMMANDS)], ids=" ".join)
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


def test_help_imports_no_command():
    """It answers at once, whatever a command needs."""
    script = "import sys; from workshop.cli import main\ntry: main(['--help'])\nfinally: print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "workshop.cli" in loaded
    assert not loaded & {"numpy", "torch", "matplotlib", *(f"workshop.cli.{name}" for name in COMMANDS)}


def test_python_dash_m():
    done = subprocess.run(
        [sys.executable, "-m", "workshop", "--version"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, f"workshop {__version__}\n")
