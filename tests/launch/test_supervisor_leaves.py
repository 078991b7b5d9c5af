"""The supervisor leaves no folder, also where a rank is started at the very moment that the notebook goes."""

import subprocess
import sys
from pathlib import Path

LEAVING = """
import subprocess, sys, threading, time
from pathlib import Path
from workshop.launch.child.supervisor import Supervisor

directory = Path(sys.argv[1])
(directory / "k1").mkdir(parents=True)
RANK = "import pathlib, sys, time; pathlib.Path(sys.argv[1], 'k1', 'rank_1').mkdir(parents=True); time.sleep(30)"

def start_late():
    while directory.exists():
        time.sleep(0.0005)
    subprocess.Popen([sys.executable, "-S", "-c", RANK, str(directory)])

first = subprocess.Popen(["sleep", "30"])  # one that has to be waited for, so that the other comes in between
threading.Thread(target=start_late, daemon=True).start()
Supervisor(None, directory).leave()
"""


def test_a_rank_that_makes_its_folder_late_leaves_none(tmp_path: Path) -> None:
    directory = tmp_path / "session"
    for _ in range(5):
        done = subprocess.run(
            [sys.executable, "-c", LEAVING, str(directory)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert not directory.exists()
