"""A kernel that is restarted while ranks hang: nothing is left, and the server's terminal shows no stack."""

from __future__ import annotations

import time
from pathlib import Path

from jupyter_client.manager import KernelManager

HANGS = "%%ranks -n 2\nif rank:\n    dist.recv(torch.ones(1), src=0)"
PRINT_PID = "from workshop.launch import Session\nprint(Session.get().process.pid)"


def test_a_restart_during_a_hang_is_quiet(tmp_path: Path) -> None:
    said: list[str] = []

    def hear(message: dict) -> None:
        said.append(message["content"].get("text", ""))

    manager = KernelManager()
    with (tmp_path / "terminal").open("wb") as terminal:
        manager.start_kernel(stdout=terminal, stderr=terminal)
        client = manager.client()
        try:
            client.start_channels()
            client.wait_for_ready(timeout=60)
            client.execute_interactive("%load_ext workshop", timeout=60)
            client.execute_interactive(PRINT_PID, timeout=60, output_hook=hear)
            client.execute_interactive("%ranks start -n 2", timeout=60)
            client.execute(HANGS)
            time.sleep(1.5)
            manager.restart_kernel()
            client.wait_for_ready(timeout=60)
        finally:
            client.stop_channels()
            manager.shutdown_kernel()
    assert "Traceback" not in (tmp_path / "terminal").read_text()
    supervisor, deadline = Path("/proc", "".join(said).strip()), time.monotonic() + 30
    while supervisor.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not supervisor.exists()
