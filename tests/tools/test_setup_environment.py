import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tools import setup_environment as setup

ROOT = Path(__file__).parents[2]


def program(folder, name, script):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


# ------------------------------------------------------------------------------------------ Python


def test_a_python_that_is_new_enough_stays():
    assert setup.newer_python((3, 11)) is None
    assert setup.newer_python((3, 14)) is None


def test_a_newer_python_is_looked_for(monkeypatch, tmp_path):
    program(tmp_path, "python3.13", "exit 127")  # a version manager's name that leads nowhere
    good = program(tmp_path, "python3.12", "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert setup.newer_python((3, 9)) == str(good)


def test_no_newer_python(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        setup.SetupError, match=r"is Python 3\.9, and the workshop needs 3\.11 or newer.*PYTHON="
    ):
        setup.newer_python((3, 9))


def test_no_venv_module(tmp_path):
    python = program(tmp_path, "python3", "exit 1")
    with pytest.raises(setup.SetupError, match="apt-get install python3-venv"):
        setup.require_venv(str(python))
    setup.require_venv(sys.executable)


def test_an_environment_is_made_once_and_again_when_it_was_moved(tmp_path, monkeypatch):
    upgraded = []
    monkeypatch.setattr(setup, "pip_install", lambda python, arguments, what: upgraded.append(arguments))
    venv = tmp_path / "a space" / ".venv"
    assert setup.make_venv(venv, sys.executable) is True
    assert setup.make_venv(venv, sys.executable) is False
    assert upgraded == [["--upgrade", "pip"]]
    moved = tmp_path / "moved" / ".venv"
    moved.parent.mkdir()
    shutil.copytree(venv, moved, symlinks=True)
    (moved / "pyvenv.cfg").unlink()  # its Python now belongs to no environment
    assert setup.make_venv(moved, sys.executable) is True
    assert setup.make_venv(moved, sys.executable) is False


# ------------------------------------------------------------------------------------------ commands


def test_a_failure_shows_the_tail(capsys):
    code = "for i in range(100): print('line', i)\nraise SystemExit(3)"
    with pytest.raises(setup.CommandFailed) as failed:
        setup.run_quietly([sys.executable, "-c", code], "counting")
    said = str(failed.value)
    assert said.startswith("counting failed with exit code 3; its last words:\n")
    assert "line 99" in said
    assert "line 74\n" not in said
    assert "line 74\n" in failed.value.output
    assert capsys.readouterr().out == ""


def test_a_long_command_gives_signs_of_life(monkeypatch, capsys):
    monkeypatch.setattr(setup, "SECONDS_BETWEEN_SIGNS", 0.2)
    setup.run_quietly([sys.executable, "-c", "import time; time.sleep(1)"], "sleeping")
    assert capsys.readouterr().out.count("... sleeping, ") >= 2


# ------------------------------------------------------------------------------------------ torch


@pytest.fixture
def machine(monkeypatch):
    """A machine without GPU and torch on which pip finds everything; records what would be installed."""

    class Machine:
        installed = ()
        pip_says = ""

        def pip_install(self, python, arguments, what):
            self.installed += (arguments[0],)
            if arguments[0] == setup.TORCH_CPU and self.pip_says:
                raise setup.CommandFailed(what, 1, self.pip_says)

        def run_quietly(self, command, what):
            self.installed += (" ".join(command[1:]),)

    made = Machine()
    monkeypatch.setattr(setup, "pip_install", made.pip_install)
    monkeypatch.setattr(setup, "run_quietly", made.run_quietly)
    monkeypatch.setattr(setup, "installed_torch", lambda python: None)
    monkeypatch.setattr(setup, "has_gpu", lambda: False)
    monkeypatch.setattr(setup, "packages", lambda python: set())
    return made


PYTHON = Path("bin") / "python"


def test_without_a_gpu_the_cpu_build(machine):
    assert "CPU build" in setup.install_torch(PYTHON, [], None)
    assert machine.installed == (setup.TORCH_CPU,)


def test_with_a_gpu_the_plain_build(machine, monkeypatch):
    monkeypatch.setattr(setup, "has_gpu", lambda: True)
    assert "CUDA" in setup.install_torch(PYTHON, [], None)
    assert machine.installed == (setup.TORCH_RANGE,)


def test_a_torch_in_range_stays(machine, monkeypatch):
    monkeypatch.setattr(setup, "installed_torch", lambda python: "2.12.1")
    assert setup.install_torch(PYTHON, [], None) == "torch 2.12.1 is there and stays"
    assert machine.installed == ()


def test_torch_can_be_chosen(machine, monkeypatch):
    monkeypatch.setattr(setup, "installed_torch", lambda python: "2.13.0")
    setup.install_torch(PYTHON, [], "torch==2.12.*")
    assert machine.installed == ("torch==2.12.*",)


def test_without_a_cpu_build_in_pips_index_uv_finds_one(machine, capsys):
    machine.pip_says = "ERROR: No matching distribution found for torch==2.13.0+cpu"
    setup.install_torch(PYTHON, ["--constraint", "c.txt"], None)
    assert machine.installed[1] == "uv"
    assert "--torch-backend=cpu torch>=2.11,<2.14 --constraint c.txt" in machine.installed[2]
    assert "uv knows" in capsys.readouterr().out


def test_a_broken_line_is_no_reason_to_ask_uv(machine):
    machine.pip_says = "ERROR: Could not install packages due to an OSError: No space left on device"
    with pytest.raises(setup.CommandFailed, match="No space left"):
        setup.install_torch(PYTHON, [], None)
    assert machine.installed == (setup.TORCH_CPU,)


@pytest.mark.parametrize(
    ("script", "answer"), [("echo 'GPU 0: X'", True), ("echo no devices", False), ("exit 9", False)]
)
def test_has_gpu(monkeypatch, tmp_path, script, answer):
    program(tmp_path, "nvidia-smi", script)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    assert setup.has_gpu() is answer


def test_has_no_gpu_without_nvidia_smi(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert setup.has_gpu() is False


def test_installed_torch_is_read_from_the_environment():
    from importlib.metadata import version

    assert setup.installed_torch(Path(sys.executable)) == version("torch")


def test_a_torch_out_of_range_does_not_count(monkeypatch):
    monkeypatch.setattr(setup, "TORCH_RANGE", "torch>=99")
    assert setup.installed_torch(Path(sys.executable)) is None


def test_the_ranges_are_those_of_the_package():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert setup.TORCH_RANGE in project["dependencies"]
    assert project["requires-python"] == ">={}.{}".format(*setup.OLDEST_PYTHON)


# ------------------------------------------------------------------------------------------ stamp and main


@pytest.fixture
def tree(tmp_path):
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_text("a = 1\n")
    (tmp_path / ".venv").mkdir()
    return tmp_path


def test_the_stamp_changes_with_what_it_stands_for(tree):
    before = setup.fingerprint(tree, None)
    assert setup.fingerprint(tree, None) == before
    assert setup.fingerprint(tree, "torch==2.12.*") != before
    (tree / "constraints.txt").write_text("b = 1\n")
    assert setup.fingerprint(tree, None) != before


def test_extras_add_up_in_the_stamp(tree):
    venv, now = tree / ".venv", setup.fingerprint(tree, None)
    assert not setup.is_done(venv, now, set())
    setup.write_stamp(venv, now, {"dev"})
    assert setup.is_done(venv, now, set())
    assert setup.is_done(venv, now, {"dev"})
    assert not setup.is_done(venv, now, {"bench"})
    setup.write_stamp(venv, now, {"bench"})
    assert setup.is_done(venv, now, {"dev", "bench"})
    assert not setup.is_done(venv, "other", set())
    (venv / setup.STAMP).write_text("{")
    assert not setup.is_done(venv, now, set())


def test_the_steps_are_said_and_the_second_run_does_nothing(tree, machine, monkeypatch, capsys):
    monkeypatch.delenv("TORCH", raising=False)
    monkeypatch.setattr(setup, "make_venv", lambda venv, python: True)
    arguments = ["--root", str(tree), "--extras", "dev"]
    assert setup.main(arguments) == 0
    said = capsys.readouterr().out
    assert [line.split(":")[0] for line in said.splitlines() if line.startswith("setup ")] == [
        "setup 1/3", "setup 2/3", "setup 3/3",
    ]  # fmt: skip
    assert machine.installed == (setup.TORCH_CPU, "--editable")
    assert setup.main(arguments) == 0
    assert capsys.readouterr().out.startswith("setup: .venv is ready")
    assert len(machine.installed) == 2
    assert setup.main([*arguments, "--extras", "dev,bench"]) == 0
    assert len(machine.installed) == 4


def test_a_failure_is_a_sentence_and_no_stamp(tree, machine, monkeypatch, capsys):
    monkeypatch.delenv("TORCH", raising=False)
    monkeypatch.setattr(setup, "make_venv", lambda venv, python: True)
    machine.pip_says = "ERROR: no route to host"
    assert setup.main(["--root", str(tree)]) == 1
    told = capsys.readouterr().err
    assert told.startswith("setup: installing torch, the CPU build failed with exit code 1")
    assert "no route to host" in told
    assert not (tree / ".venv" / setup.STAMP).exists()


# --------------------------------------------------------------------------------------------- bytecode


@pytest.fixture
def installed(tmp_path):
    """An environment with packages, one of which holds a file that is no Python."""
    folder = tmp_path / "lib" / "python3.11" / "site-packages"
    for name in ("one/a.py", "one/sub/b.py", "one/tests/c.py", "two.py", "three/template.py", "three/d.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{{ name }} = 1 +" if "template" in name else "x = 1\n")
    return tmp_path / "bin" / "python", folder


def compiled(folder):
    return {path.name.split(".")[0] for path in folder.rglob("*.pyc")}


@pytest.mark.parametrize("jobs", [1, 2, 3, 8])
def test_packages_are_compiled_but_what_is_rarely_imported(installed, jobs):
    python, folder = installed
    assert {path.name for path in setup.packages(python)} == {"one", "two.py", "three"}
    program = ROOT / "tools" / "compile_packages.py"
    names = map(str, setup.packages(python))
    done = subprocess.run([sys.executable, program, str(jobs), *names], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert compiled(folder) == {"a", "b", "two", "d"}


def test_packages_are_compiled_beside_what_is_done_and_no_longer_where_that_fails(installed):
    _, folder = installed
    with setup.compiling(Path(sys.executable), {folder / "one"}, jobs=1):
        pass
    assert compiled(folder) == {"a", "b"}
    began = time.monotonic()
    slow = {Path(sys.prefix, "lib")}  # everything: it would take minutes, and find most of it compiled
    with pytest.raises(KeyError), setup.compiling(Path(sys.executable), slow, jobs=1):
        raise KeyError
    assert time.monotonic() - began < 30


def test_make_offers_the_commands_that_the_readme_names():
    done = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, timeout=20)
    for target in ("lab", "test", "check", "bench", "faults", "notebooks"):
        assert f"make {target} " in done.stdout
