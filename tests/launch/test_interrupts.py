"""A rank that stays is interrupted by itself again until its cell ends, and is held where it does not."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

LOOP = """
import signal
from workshop.launch.child import interrupts
interrupts.AGAIN_SECONDS, interrupts.HELD_AFTER_SECONDS = 0.1, 0.8
signal.signal(signal.SIGINT, interrupts.interrupt_learner)
loop = '''
import os, signal
try: os.kill(os.getpid(), signal.SIGINT)
except BaseException: print("swallowed", flush=True)
while True:
    try:
        while True: sum(range(1000))
    except BaseException: print("swallowed", flush=True)
'''
exec(compile(loop, "<rank cell 1>", "exec"))
"""


BOUNDS = """
import signal, sys, time
from workshop.launch.child import interrupts
interrupts.AGAIN_SECONDS = 0.05
none, handler = (0.0, 0.0), interrupts.interrupt_learner
names = {}
exec(compile("import sys; frame = sys._getframe()", "<rank cell 1>", "exec"), names)

def interrupted(frame):
    try: handler(signal.SIGINT, frame)
    except KeyboardInterrupt: return True
    return False

assert not interrupted(sys._getframe()) and signal.getitimer(signal.ITIMER_REAL) == none, "out of a cell"
assert interrupted(names["frame"]) and signal.getitimer(signal.ITIMER_REAL) != none
handler.cell_is_over()
assert signal.getitimer(signal.ITIMER_REAL) == none, "the cell's alarm is gone with it"
assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL

rang = []
signal.signal(signal.SIGALRM, lambda *_: rang.append(True))
signal.setitimer(signal.ITIMER_REAL, 0.02)
assert interrupted(names["frame"])
handler.cell_is_over()
time.sleep(0.1)
assert rang == [True], "an alarm that the cell has set stays its own"
"""


def test_out_of_a_cell_and_after_it_there_is_no_alarm_and_the_cells_own_stays() -> None:
    """In a process of its own: pytest's time limit has the alarm of this one."""
    done = subprocess.run(
        [sys.executable, "-c", BOUNDS], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_one_that_swallows_them_all_is_sent_more_and_then_held() -> None:
    with subprocess.Popen([sys.executable, "-c", LOOP], stdout=subprocess.PIPE, text=True) as rank:
        assert rank.stdout is not None
        heard = [rank.stdout.readline() for _ in range(3)]  # one signal came from outside
        assert heard == ["swallowed\n"] * 3
        deadline, before = time.monotonic() + 20, -1.0
        while processor_seconds(rank.pid) > before and time.monotonic() < deadline:
            before = processor_seconds(rank.pid)
            time.sleep(0.5)
        assert processor_seconds(rank.pid) == before, "it computes no more"
        assert rank.poll() is None
        rank.terminate()
        assert rank.wait(10) == -signal.SIGTERM
