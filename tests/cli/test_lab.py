"""`workshop lab`: the first lesson in the terminal, and a real JupyterLab."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import nbformat
import pytest
import websocket
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from workshop.cli import lab_here, main
from workshop.cli.lab_here import WELCOME
from workshop.cli.server import free_port


@pytest.fixture
def lessons(tmp_path, monkeypatch):
    folder = tmp_path / "notebooks"
    (folder / WELCOME).parent.mkdir(parents=True)
    monkeypatch.setattr(lab_here, "find_lessons", lambda: folder)
    return folder


def publish(lessons, *sources):
    cells = [new_markdown_cell("# Hello\ntext"), *map(new_code_cell, sources)]
    nbformat.write(new_notebook(cells=cells), lessons / WELCOME)


def test_welcome_prints_code_and_output_and_fills_the_copy(lessons, tmp_path, capsys):
    publish(lessons, "x = 20 + 1", "print(2 * x)\nx + 2")
    assert main(["lab", "--welcome-only"]) == 0
    said = capsys.readouterr().out
    assert "\nHello\n-----\n" in said
    assert "    print(2 * x)\n    x + 2\n42\n23\n" in said
    assert "ran to its end" in said
    stored = nbformat.read(tmp_path / "lab" / WELCOME, as_version=4)
    assert stored.cells[2].outputs[0].text == "42\n"


def test_welcome_uses_this_python(lessons, capsys):
    publish(lessons, "import sys; print(sys.executable)")
    assert main(["lab", "--welcome-only"]) == 0
    assert sys.executable in capsys.readouterr().out.splitlines()


def test_welcome_that_fails_is_told(lessons, capsys):
    publish(lessons, "print('before')", "1 / 0", "print('after')")
    assert main(["lab", "--welcome-only"]) == 1
    told = capsys.readouterr()
    assert "\nbefore\n" in told.out
    assert "\nafter\n" not in told.out
    assert "ZeroDivisionError" in told.err
    assert "workshop doctor" in told.err


def test_welcome_keeps_what_the_learner_wrote(lessons, tmp_path):
    publish(lessons, "print(1)")
    assert main(["lab", "--welcome-only"]) == 0
    copy = tmp_path / "lab" / WELCOME
    notebook = nbformat.read(copy, as_version=4)
    notebook.cells[1].source = "print('mine')"
    nbformat.write(notebook, copy)
    before = copy.read_bytes()
    publish(lessons, "print(2)")
    assert main(["lab", "--welcome-only"]) == 0
    assert copy.read_bytes() == before


def test_a_picture_is_named(lessons, capsys):
    publish(lessons, "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()")
    assert main(["lab", "--welcome-only"]) == 0
    assert "[a picture: see it in the lab]" in capsys.readouterr().out


def test_no_lessons(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lab_here, "ROOT", tmp_path / "site")
    assert main(["lab"]) == 2
    assert "clone the repository and run `make lab` in it" in capsys.readouterr().err


def test_a_taken_port_is_passed_over():
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        assert taken < free_port(taken) < taken + 50


def test_no_port_is_free():
    with (
        socket.create_server(("127.0.0.1", 65535)),
        pytest.raises(ValueError, match="give another with --port"),
    ):
        free_port(65535)


def get(url):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=10) as answer:
            return answer.status, answer.geturl()
    except urllib.error.HTTPError as refused:
        return refused.code, url


@pytest.fixture
def served(lessons):
    """A real `workshop lab`; the process and the address it printed."""
    publish(lessons, "print(1)")
    port = free_port(20000 + os.getpid() % 20000)
    code = (
        "import sys; from pathlib import Path; from workshop.cli import lab_here, main\n"
        f"lab_here.find_lessons = lambda: Path({str(lessons)!r})\n"
        f"sys.exit(main(['lab', '--no-browser', '--port', '{port}']))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    lines = []
    for line in process.stdout:
        lines.append(line)
        found = re.search(r"http://\S+", line)
        if found:
            break
    else:
        pytest.fail("".join(lines))
    yield process, found[0]
    process.kill()
    process.wait()
    process.stdout.close()


BOTH_AT_ONCE = """
import os, signal
from workshop.cli import server
ending = (signal.SIGINT, signal.SIGTERM)
for sent in ending:
    signal.signal(sent, server._interrupt)
signal.pthread_sigmask(signal.SIG_BLOCK, ending)
for sent in ending:
    os.kill(os.getpid(), sent)
try:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ending)
except KeyboardInterrupt:
    os.kill(os.getpid(), signal.SIGTERM)
    print("ended once")
"""


def test_of_several_signals_one_ends_the_lab():
    """The second may come before anybody has caught the first, on a busy machine above all."""
    ended = subprocess.run([sys.executable, "-c", BOTH_AT_ONCE], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "ended once\n"), ended.stderr


def in_terminal(port, token, command, until):
    """What a terminal of the lab shows after this command, up to the text ``until``."""
    new = urllib.request.Request(f"http://127.0.0.1:{port}/api/terminals?token={token}", method="POST")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(new, timeout=10) as answer:
        name = json.load(answer)["name"]
    address = f"ws://127.0.0.1:{port}/terminals/websocket/{name}?token={token}"
    socket = websocket.create_connection(address, timeout=20, http_no_proxy=["*"])
    try:
        socket.send(json.dumps(["stdin", command + "\n"]))
        shown = ""
        while until not in shown:
            kind, *content = json.loads(socket.recv())
            shown += content[0] if kind == "stdout" else ""
        return shown
    finally:
        socket.close()


def listeners(port):
    """Local addresses (hexadecimal, as the kernel gives them) on which someone listens on ``port``."""
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return {row[1].split(":")[0] for row in rows if row[3] == "0A" and int(row[1].split(":")[1], 16) == port}


@pytest.mark.parametrize("stop", [(signal.SIGINT,), (signal.SIGTERM,), (signal.SIGINT, signal.SIGTERM)])
def test_jupyterlab_is_served_to_this_machine_with_its_token(served, stop):
    process, address = served
    port = int(re.search(r":(\d+)/", address)[1])
    assert listeners(port) == {"0100007F"}  # 127.0.0.1 and nothing else
    page, token = address.split("?token=")
    assert page.endswith(f"/lab/tree/{WELCOME}")
    api = f"http://127.0.0.1:{port}/api/contents"
    assert get(api)[0] == 403
    assert get(f"{api}?token={'0' * len(token)}")[0] == 403
    assert get(f"{api}?token={token}")[0] == 200
    assert get(address)[0] == 200
    if len(stop) > 1:  # once is enough
        own = Path(sys.executable).parent
        shown = in_terminal(port, token, 'echo "<$(command -v workshop)>"', "workshop>")
        assert f"<{own / 'workshop'}>" in shown, "the lab's terminal does not find the command"
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert not any(token in Path(f"/proc/{child}/cmdline").read_text() for child in children)
    for sent in stop:
        process.send_signal(sent)
        time.sleep(0.05)
    rest = process.stdout.read()
    assert process.wait(timeout=30) == 0, rest
    assert "Traceback" not in rest
    deadline = time.monotonic() + 5
    while listeners(port) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not listeners(port)


@pytest.mark.parametrize("last", ["print('end')", "1 / 0"])
def test_the_kernel_of_the_welcome_is_gone_afterwards(lessons, capsys, last):
    publish(lessons, "import os; print('pid', os.getpid())", last)
    main(["lab", "--welcome-only"])
    pid = re.search(r"^pid (\d+)$", capsys.readouterr().out, re.MULTILINE)[1]
    deadline = time.monotonic() + 5
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()
