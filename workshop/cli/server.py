"""JupyterLab on this machine only, behind its token.

The server is JupyterLab's own, in a child process. It listens on 127.0.0.1 (in a job, if told so, on the
node's network); the token is random, made for
this run and handed over in the environment, because a command line can be read by every user of the
machine. The news popup and update checks are off. Ctrl-C, a closed terminal or SIGTERM end the server and
with it the kernels.
"""

from __future__ import annotations

import contextlib
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
from dataclasses import dataclass
from pathlib import Path

import zmq

from workshop.launch.processes import die_with_parent
from workshop.site.current import current_site, in_allocation, scrubbed
from workshop.site.interfaces import address_on, own_address

LOOPBACK = "127.0.0.1"
PORTS_TO_TRY = 50
START_SECONDS = 90
STOP_SECONDS = 10
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_OVERRIDES = {"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False}}


@dataclass(frozen=True)
class Reached:
    """How one gets here: by ``ssh`` through ``login`` where that is given; ``address`` is listened on."""

    login: str = ""
    address: str = LOOPBACK

    def said(self, port: int) -> str:
        """The line that comes after the address."""
        node = socket.gethostname()
        if not self.login:
            way = f"ssh -L {port}:{LOOPBACK}:{port} THAT_MACHINE"
            return f"lab: Ctrl-C ends it. On a remote machine, first: {way}"
        if self.address == LOOPBACK:
            way = f"ssh -N -L {port}:{LOOPBACK}:{port} -J {self.login} {node}"
        else:
            way = f"ssh -N -L {port}:{node}:{port} {self.login}"
        return f"lab: it runs on {node}. First, on your own machine, and leave it running:\n\n    {way}\n"


def node_address() -> str:
    """The address of this node that others of the cluster reach: the site's interface's, else the name's.

    Raises ValueError where there is none but loopback.
    """
    site = current_site()
    own = address_on(site.interface) if site.interface else ""
    with contextlib.suppress(OSError):
        own = own or own_address()
    if not own or own.startswith("127."):
        raise ValueError("this node has no address but loopback: set interface in [node] of the site's file")
    return own


def serve(folder: Path, port: int, open_browser: bool, first_page: str, at: Reached = Reached()) -> int:
    """Serve ``folder`` until interrupted; the exit code is 0 after an interrupt, else the server's.

    Raises:
        ValueError: None of the ports from ``port`` on is free.
    """
    port, token = free_port(port, at.address), secrets.token_hex(24)
    with tempfile.TemporaryDirectory(prefix="workshop-lab-") as config:
        process = start(folder, port, token, Path(config), at.address)
        previous = {sig: signal.signal(sig, _interrupt) for sig in _ENDING}
        try:
            if not wait_until_up(process, port, at.address):
                print("lab: JupyterLab did not start; its messages are above", file=sys.stderr)
                return process.poll() or 1
            address = f"http://{LOOPBACK}:{port}/lab/tree/{first_page}?token={token}"
            whom = "for this machine only" if at.address == LOOPBACK else "for who has its token"
            print(f"lab: JupyterLab is up, {whom}:\n\n    {address}\n", flush=True)
            print(at.said(port), flush=True)
            if open_browser and _has_display():
                webbrowser.open(address)
            return process.wait()
        except KeyboardInterrupt:
            print("\nlab: ending JupyterLab and its kernels", flush=True)
            return 0
        finally:
            _ignore_signals()  # the end must not be interrupted
            stop(process)
            for sig, handler in previous.items():
                signal.signal(sig, handler)


def free_port(first: int, address: str = LOOPBACK) -> int:
    """The first port from ``first`` on that nobody listens on.

    Raises:
        ValueError: None of fifty is free.
    """
    last = min(first + PORTS_TO_TRY, 65536) - 1
    for port in range(first, last + 1):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
            except OSError:
                continue
            return port
    raise ValueError(f"no port from {first} to {last} is free on {address}: give another with --port")


def start(folder: Path, port: int, token: str, config: Path, ip: str = LOOPBACK) -> subprocess.Popen[bytes]:
    """Start JupyterLab in ``folder``; ``config`` is an empty folder for its settings of this run."""
    overrides = config / "labconfig" / "default_setting_overrides.json"
    overrides.parent.mkdir(parents=True)
    overrides.write_text(json.dumps(_OVERRIDES))
    environment = scrubbed(os.environ) | {"JUPYTER_TOKEN": token}
    if in_allocation(os.environ):  # notebooks may ask the scheduler about their job; ranks do not see this
        environment |= {name: value for name, value in os.environ.items() if name.startswith("SLURM_")}
    # In JupyterLab's terminal `workshop` and `python` are these; a login shell would set PATH anew.
    environment["PATH"] = os.pathsep.join(
        [str(Path(sys.executable).parent), environment.get("PATH", os.defpath)]
    )
    known = environment.get("JUPYTER_CONFIG_PATH")
    environment["JUPYTER_CONFIG_PATH"] = os.pathsep.join([str(config), *([known] if known else [])])
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--log-level=WARN",
        f"--ServerApp.ip={ip}", f"--ServerApp.port={port}", "--ServerApp.port_retries=0",
        f"--ServerApp.root_dir={folder}",
        "--LabApp.news_url=None", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        "--LabApp.extension_manager=readonly",
        f"--ServerApp.terminado_settings=shell_command={environment.get('SHELL') or 'sh'}",
    ]  # fmt: skip
    if zmq.has("curve"):  # what kernels and server say to each other is encrypted, not only signed
        command.append("--KernelManager.transport_encryption=auto")
    if os.geteuid() == 0:  # a container; JupyterLab refuses root unless told
        command.append("--allow-root")
    # A group of its own: Ctrl-C in the terminal reaches us, and we end the server without its "are you sure".
    return subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=die_with_parent
    )


def wait_until_up(process: subprocess.Popen[bytes], port: int, ip: str = LOOPBACK) -> bool:
    """Wait until the server answers; False when it ended or took longer than 90 s."""
    # Straight there: a proxy of the environment must not be asked.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with opener.open(f"http://{ip}:{port}/api", timeout=5) as answer:
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
    _ignore_signals()  # Ctrl-C under make brings a second one, which may come before the first was caught
    raise KeyboardInterrupt


def _ignore_signals() -> None:
    for sig in _ENDING:
        signal.signal(sig, signal.SIG_IGN)


def _has_display() -> bool:
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
