"""Install Aim where only the test of its log finds it: ``.venv/aim``.

Aim cannot be one of the `dev` extra: aim 3.29.1 wants ``filelock<4`` where the lock has a newer one, its web
pages (aim-ui 3.29.1) are no wheel, and its storage (aimrocks) has none for the newest Python that we take. To
write a run and read it back it needs none of that. So its wheels lie in a folder apart, without what they ask
for, and nothing else sees them. Where they cannot be had this says so, and the test is skipped.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / ".venv" / "aim"
# What writing a run and reading it imports, beside what `make test` has. Versions that the test ran with.
WHEELS = (
    "aim==3.29.1",
    "aimrocks==0.5.2",
    "alembic==1.20.1",
    "cachetools==8.0.1",
    "fastapi==0.165.0",
    "Mako==1.4.3",
    "pytz==2026.6",
    "RestrictedPython==9.0",
    "SQLAlchemy==2.1.9",
    "starlette==1.10.0",
    "watchdog==7.1.0",
    "websockets==17.4",
)
STAMP = FOLDER / "wheels.txt"
SECONDS = 180


def main() -> int:
    """Install what is missing; the exit code is 0 in any case, for one log's test is no reason to stop."""
    wanted = "\n".join((*WHEELS, sys.version))
    if STAMP.is_file() and STAMP.read_text() == wanted:
        return 0
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary", ":all:", "--upgrade", "--target", str(FOLDER), *WHEELS]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        lacks = "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["pip failed"])[-1]
    except subprocess.TimeoutExpired:
        lacks = f"pip took longer than {SECONDS} s"
    if lacks:
        print(f"aim: not installed, the test of its log is skipped ({lacks})")
    else:
        STAMP.write_text(wanted)
        print("aim: installed into .venv/aim, for the test of its log alone")
    return 0


if __name__ == "__main__":
    sys.exit(main())
