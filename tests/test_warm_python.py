"""A fork of the warm Python is as good as a new one: same answer, same errors, nothing stays behind."""

import os
import signal
import subprocess
import sys
import threading

import pytest
from jupyter_client.manager import start_new_kernel

from tests import warm_kernels, warm_python
from tests.waiting import wait_until
from workshop.launch.processes import ProcessId, descendants


def test_environment_folder_and_output_are_the_callers(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "import os, sys\nprint(os.environ['MINE'], 'HOME' in os.environ, os.getcwd(), sys.argv[1:])\n"
        "print('to stderr', file=sys.stderr)\nsys.exit(3)\n"
    )
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-m", "mine", "--flag", "1"]
    environment = {"MINE": "a value", "PATH": os.environ["PATH"]}
    cold = subprocess.run(command, env=environment, capture_output=True, text=True)
    warm = warm_python.run(command, env=environment)
    assert cold.stdout == f"a value False {tmp_path} ['--flag', '1']\n"
    assert (warm.returncode, warm.stdout, warm.stderr) == (3, cold.stdout, cold.stderr)


def test_it_is_ended_in_time_with_what_it_said(tmp_path, monkeypatch):
    (tmp_path / "sleeper.py").write_text("import time\nprint('begun', flush=True)\ntime.sleep(600)\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(subprocess.TimeoutExpired) as late:
        warm_python.run([sys.executable, "-m", "sleeper"], timeout=5)
    assert late.value.stdout == b"begun\n"


def cell(client, code):
    """(status, what it printed) of a cell."""
    said = []
    reply = client.execute_interactive(
        code, timeout=60, output_hook=lambda m: said.append(m["content"].get("text", ""))
    )
    return reply["content"].get("ename", "ok"), "".join(said).strip()


def below(kernel):
    """The kernel's process and all that it has started, its twins among them."""
    return [ProcessId.of(int(kernel)), *descendants(int(kernel))]


def test_a_kernel_is_a_process_of_its_own_and_hears_the_stop_button():
    with warm_kernels.warm():
        manager, client = start_new_kernel(stderr=subprocess.DEVNULL)
    assert cell(client, "import sys; sys.modules['torch'].mine = 'here'; print(__name__)") == (
        "ok",
        "__main__",
    )
    status, parent = cell(client, "import os, time; print(os.getppid())")
    threading.Timer(1, manager.interrupt_kernel).start()
    assert cell(client, "time.sleep(600)")[0] == "KeyboardInterrupt"
    status, number = cell(client, "print(os.getpid())")
    assert (status, int(number)) == ("ok", manager.provisioner.pid)
    theirs = below(number)
    assert len(theirs) == 3
    ranks = "get_ipython().run_line_magic('load_ext', 'workshop')\nfrom workshop.launch import torchrun\n"
    assert cell(client, ranks + "print(torchrun('print(6 * 7)', 2).text)")[1] == "[ranks 0-1] 42"
    theirs = {*theirs, *below(number)}
    assert len(theirs) >= 5, "the engine's resource tracker and fork server: one of the twins is the engine"
    client.execute("time.sleep(600)")
    manager.signal_kernel(signal.SIGKILL)
    wait_until(lambda: not manager.is_alive() and not any(process.alive() for process in theirs))
    manager.restart_kernel(now=True)  # and the next is new, though not warm: it was not asked for
    client.wait_for_ready(timeout=60)
    assert cell(client, "import os, torch; print(hasattr(torch, 'mine'))") == ("ok", "False")
    client.stop_channels()
    manager.shutdown_kernel(now=True)
    assert int(parent) != os.getpid()


KILLED = """
import os, signal, sys
from tests import warm_kernels, warm_python
from jupyter_client.manager import start_new_kernel
warm_python.PRELOADED = ("ipykernel.kernelapp", "tests.warm_twins")  # torch is not what is tried
with warm_kernels.warm():
    manager, client = start_new_kernel(stderr=open(os.devnull, "w"))
client.execute("import time; time.sleep(600)")
print(manager.provisioner.pid, flush=True)
signal.pause()
"""


def test_nothing_is_left_of_a_kernel_when_pytest_is_killed():
    """Its parent is the warm Python, which goes with pytest: told by a socket, and the kernel tells the kernel."""
    pytests = subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True)
    with pytests:
        theirs = below(pytests.stdout.readline())
        assert len(theirs) == 3
        pytests.kill()
    wait_until(lambda: not any(process.alive() for process in theirs))
