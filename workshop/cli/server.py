"""JupyterLab on this machine only, behind its token.

The server is JupyterLab's own, in a child process. It listens on 127.0.0.1; the token is random, made for
this run and handed over in the environment, because a command line can be read by every user of the
machine. The news popup and update checks are off. Ctrl-C, a closed terminal or SIGTERM end the server and
with it the kernels.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import webbrowser
from pathlib import Path

import zmq

from workshop.launch.environment import scrubbed
from workshop.launch.processes import die_with_parent

LOOPBACK = "127.0.0.1"
PORTS_TO_TRY = 50
START_SECONDS = 90
STOP_SECONDS = 10
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_OVERRIDES = {"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False}}


def serve(folder: Path, port: int, open_browser: bool, first_page: str) -> int:
    """Serve ``folder`` until interrupted; the exit code is 0 after an interrupt, else the server's.

    Raises
    ------
    ValueError
        None of the ports from ``port`` on is free.
    """
    port, token = free_port(port), secrets.token_hex(24)
    with tempfile.TemporaryDirectory(prefix="workshop-lab-") as config:
        process = start(folder, port, token, Path(config))
        previous = {sig: signal.signal(sig, _interrupt) for sig in _ENDING}
        try:
            if not wait_until_up(process, port):
                print("lab: JupyterLab did not start; its messages are above", file=sys.stderr)
                return process.poll() or 1
            address = f"http://{LOOPBACK}:{port}/lab/tree/{first_page}?token={token}"
            print(f"lab: JupyterLab is up, for this machine only:\n\n    {address}\n", flush=True)
            print(
                "lab: Ctrl-C ends it. On a remote machine, first: "
                f"ssh -L {port}:{LOOPBACK}:{port} THAT_MACHINE",
                flush=True,
            )
            if open_browser and _has_display():
                webbrowser.open(address)
            return process.wait()
        except KeyboardInterrupt:
            print("\nlab: ending JupyterLab and its kernels", flush=True)
            return 0
        finally:
            # Ctrl-C under make brings a second signal: the end must not be interrupted.
            for sig in _ENDING:
                signal.signal(sig, signal.SIG_IGN)
            stop(process)
            for sig, handler in previous.items():
                signal.signal(sig, handler)


def free_port(first: int) -> int:
    """The first port from ``first`` on that nobody listens on.

    Raises
    ------
    ValueError
        None of fifty is free.
    """
    last = min(first + PORTS_TO_TRY, 65536) - 1
    for port in range(first, last + 1):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
            return port
    raise ValueError(f"no port from {first} to {last} is free on {LOOPBACK}: give another with --port")


def start(folder: Path, port: int, token: str, config: Path) -> subprocess.Popen[bytes]:
    """Start JupyterLab in ``folder``; ``config`` is an empty folder for its settings of this run."""
    overrides = config / "labconfig" / "default_setting_overrides.json"
    overrides.parent.mkdir(parents=True)
    overrides.write_text(json.dumps(_OVERRIDES))
    environment = scrubbed(os.environ) | {"JUPYTER_TOKEN": token}
    known = environment.get("JUPYTER_CONFIG_PATH")
    environment["JUPYTER_CONFIG_PATH"] = os.pathsep.join([str(config), *([known] if known else [])])
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--log-level=WARN",
        f"--ServerApp.ip={LOOPBACK}", f"--ServerApp.port={port}", "--ServerApp.port_retries=0",
        f"--ServerApp.root_dir={folder}",
        "--LabApp.news_url=None", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        "--LabApp.extension_manager=readonly",
    ]  # fmt: skip
    if zmq.has("curve"):  # what kernels and server say to each other is encrypted, not only signed
        command.append("--KernelManager.transport_encryption=auto")
    if os.geteuid() == 0:  # a container; JupyterLab refuses root unless told
        command.append("--allow-root")
    # A group of its own: Ctrl-C in the terminal reaches us, and we end the server without its "are you sure".
    return subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=die_with_parent
    )


def wait_until_up(process: subprocess.Popen[bytes], port: int) -> bool:
    """Wait until the server answers; False when it ended or took longer than 90 s."""
    # Straight to loopback: a proxy of the environment must not be asked.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with opener.open(f"http://{LOOPBACK}:{port}/api", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    return False


def stop(process: subprocess.Popen[bytes]) -> None:
    """End the server: SIGTERM makes it shut its kernels down, SIGKILL follows after ten seconds."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _interrupt(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _has_display() -> bool:
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
