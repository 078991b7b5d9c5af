"""A rank whose group was cut is interrupted until its cell ends, also by itself; where it does not, it is held."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from workshop import launch
from workshop.launch.child.interrupts import HELD_AFTER_SECONDS
from workshop.launch.staying.recovery import FREE_SECONDS

CUT = """
import signal, threading
from workshop.launch.child import interrupts
interrupts.AGAIN_SECONDS, interrupts.HELD_AFTER_SECONDS = 0.1, 0.8
interrupts.INTERRUPTS.install()
threading.Timer(0.2, interrupts.INTERRUPTS.insist).start()
loop = '''
while True:
    try:
        while True: sum(range(1000))
    except BaseException: print("swallowed", flush=True)
'''
exec(compile(loop, "<rank cell 1>", "exec"))
"""
BOUNDS = """
import signal, time
from workshop.launch.child import interrupts
interrupts.AGAIN_SECONDS, interrupts.STRAY_SECONDS = 0.05, 0.1
none, ours = (0.0, 0.0), interrupts.INTERRUPTS
ours.install()

def cell(source):
    exec(compile(source, "<rank cell 1>", "exec"), globals())

ours.insist()
assert signal.getitimer(signal.ITIMER_REAL) == none, "no cell runs"
try: cell("ours.insist(); time.sleep(5)")
except KeyboardInterrupt: ours.no_cell_runs()
assert signal.getitimer(signal.ITIMER_REAL) == none, "the cell is over"
signal.raise_signal(signal.SIGALRM)  # a stray one
cell('''
rang = []
signal.signal(signal.SIGALRM, lambda *_: rang.append(True))
signal.setitimer(signal.ITIMER_REAL, 0.02)
ours.insist()
time.sleep(0.2)
''')
assert rang == [True], "a cell's own alarm stays its own"
ours.install()
print("as in every program", flush=True)
signal.alarm(1)
time.sleep(5)
"""
INTERRUPTS_ITSELF = """
import signal, time
try: signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt: print("saved")
until = time.monotonic() + 1.5
while time.monotonic() < until: pass
print("went on")
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: pytest's time limit has the alarm of this one."""
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )


def test_bounds_of_insisting() -> None:
    done = run(BOUNDS)
    assert (done.stdout, done.returncode) == ("as in every program\n", -signal.SIGALRM), done.stderr


def test_a_cell_that_was_not_cut_may_catch_its_interrupt_and_go_on() -> None:
    ranks = launch.Ranks(1)
    try:
        assert ranks.run(INTERRUPTS_ITSELF).text == "[rank 0] saved\n[rank 0] went on\n"
    finally:
        ranks.stop()


def test_a_rank_is_held_before_the_notebook_gives_it_up() -> None:
    assert HELD_AFTER_SECONDS < FREE_SECONDS


def processor_seconds(pid: int) -> float:
    """What a process has computed so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_one_that_swallows_them_all_is_sent_more_and_then_held() -> None:
    with subprocess.Popen([sys.executable, "-c", CUT], stdout=subprocess.PIPE, text=True) as rank:
        assert rank.stdout is not None
        heard = [rank.stdout.readline() for _ in range(3)]
        assert heard == ["swallowed\n"] * 3
        deadline, before = time.monotonic() + 20, -1.0
        while processor_seconds(rank.pid) > before and time.monotonic() < deadline:
            before = processor_seconds(rank.pid)
            time.sleep(0.5)
        assert processor_seconds(rank.pid) == before, "it computes no more"
        assert rank.poll() is None
        rank.send_signal(signal.SIGINT)
        time.sleep(0.2)
        assert rank.poll() is None, "no interrupt reaches it any more"
        rank.terminate()
        assert rank.wait(10) == -signal.SIGTERM
