"""JupyterLab in a job of a real Slurm: the tunnel's line, the token, a private log, and nothing left at the end."""

import os
import re
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

pytestmark = pytest.mark.cluster


def status(url):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as refused:
        return refused.code
    except OSError:  # nobody listens, or whoever did has ended over the question
        return 0


def test_jupyterlab_in_a_job(request, tmp_path):
    try:
        slurm = request.getfixturevalue("slurm")
    except pytest.FixtureLookupError:
        pytest.skip("there is no Slurm in these tests")
    command = [sys.executable, "-m", "workshop", "lab", "--in-job", "--dir", str(slurm.jobs / "lab"), "--wait", "60",
               "--tunnel", "ada@login", "--port", str(21000 + os.getpid() % 20000)]  # fmt: skip
    environment = {**os.environ, **slurm.environment(), "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    job = re.search(r"lab: job (\d+), log (\S+)", done.stdout)
    port, token = re.search(r"http://127\.0\.0\.1:(\d+)/lab/tree/\S+\?token=(\w+)", done.stdout).groups()
    assert re.search(rf"ssh -N -L {port}:127\.0\.0\.1:{port} -J ada@login \S+\n", done.stdout)
    log = Path(job[2])
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    api = f"http://127.0.0.1:{port}/api/contents"
    assert (status(api), status(f"{api}?token={token}")) == (403, 200)
    slurm.ask("scancel", job[1])
    deadline = time.monotonic() + 30
    while status(api) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert status(api) == 0  # the job's end is the server's
