"""The failure lab's faults, each once. `make faults` runs them five times and prints the table."""

import pytest

from benchmarks.faults import FAULTS, Fault, orphans
from benchmarks.faults import lab as fault_lab
from benchmarks.faults.groups import GROUPS, HOLDINGS
from benchmarks.faults.notebook_ends import ENDS, end_notebook
from benchmarks.faults.training import TRAINING
from tests.warm_engines import new_pythons

PATIENCE = 30.0  # the five seconds of the contract are held by `make faults` on a quiet machine
# Each of these on one engine; `make faults` runs them on both.
ONE_ENGINE = {fault.name for fault in (*TRAINING, *GROUPS, *HOLDINGS)}
CASES = [
    pytest.param(fault, engine, id=f"{fault.name} ({engine})")
    for fault in FAULTS
    for engine in (fault.engines[:1] if fault.name in ONE_ENGINE else fault.engines)
]


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    monkeypatch.setattr(fault_lab, "ERROR_WITHIN", PATIENCE)
    monkeypatch.setattr(fault_lab, "HUNG_AFTER", 3 * PATIENCE)


@pytest.fixture(scope="module")
def lab():
    with new_pythons():  # what is left is found by a mark that Linux shows of what a process was started with
        lab = fault_lab.Lab()
        yield lab
        assert lab.close() == []  # no process, no socket, no file, and nothing had listened beyond loopback


@pytest.mark.parametrize(("fault", "engine"), CASES)
def test_a_fault_is_told_in_time_and_leaves_nothing(lab, fault, engine):
    outcome = lab.run(fault, engine)
    if fault.name.startswith("DeepSpeed") and "died by SIGSEGV" in "".join(outcome.problems):
        outcome = lab.run(fault, engine)  # seen once: its own start crashed, before the fault had its turn
    assert outcome.problems == []
    assert outcome.left == 0
    assert outcome.seconds is not None
    assert outcome.seconds <= fault_lab.ERROR_WITHIN
    if engine == "ranks":
        assert outcome.goes_on.startswith("after a restart" if fault.costs_restart else "yes")


@pytest.mark.parametrize("name", ENDS)
def test_the_end_of_a_notebook_leaves_nothing(name):
    outcome = end_notebook(name)
    assert outcome.problems == []
    assert outcome.left == 0


def test_there_are_at_least_60_faults():
    assert len({fault.name for fault in FAULTS} | set(ENDS)) >= 60


# -- the lab itself has been seen to complain ---------------------------------------------------


def test_the_lab_sees_a_wrong_message_and_a_cell_that_never_failed(lab):
    wrong = Fault("wrong", 'mark("failed")\nraise ValueError("one")', "two", engines=("ranks",))
    never = Fault("never", "pass", "ended well", engines=("ranks",))
    assert "said" in lab.run(wrong, "ranks").problems[0]
    assert lab.run(never, "ranks").problems == ["the cell never came to its fault"]


def test_the_lab_sees_lost_variables_and_a_late_error(lab, monkeypatch):
    monkeypatch.setattr(fault_lab, "ERROR_WITHIN", 0.2)
    forgets = Fault("forgets", 'mark("failed")\ndel set_before\ntime.sleep(0.5)\n1 / 0', "Zero")
    problems = " ".join(lab.run(forgets, "ranks").problems)
    assert "s from the failure to the error" in problems
    assert "the same ranks did not go on" in problems


def test_the_lab_counts_what_is_left(lab, monkeypatch):
    monkeypatch.setattr(fault_lab, "ERROR_WITHIN", 0.5)
    child = "import subprocess; child = subprocess.Popen(['sleep', '1000'])"
    leaves = Fault("leaves", f"{child}\nmark('failed')\n1 / 0", "Zero")
    outcome = lab.run(leaves, "ranks")  # a process that a rank keeps, like a variable
    assert outcome.left == 2
    assert "2 processes left" in outcome.problems


def test_the_lab_gives_up_on_a_cell_that_hangs(lab, monkeypatch):
    monkeypatch.setattr(fault_lab, "HUNG_AFTER", 0.5)
    hangs = Fault("hangs", 'mark("failed")\ntime.sleep(100)', "never", timeout=100)
    assert lab.run(hangs, "ranks").problems[0].startswith("hung")


def test_a_listener_beyond_loopback_is_seen():
    import os
    import socket

    from workshop.launch.processes import ProcessId

    me = [ProcessId.of(os.getpid())]
    before = set(orphans.listeners_beyond_loopback(me))

    def since():
        return set(orphans.listeners_beyond_loopback(me)) - before

    with socket.socket() as loopback, socket.socket() as everywhere:
        loopback.bind(("127.0.0.1", 0))
        loopback.listen()
        assert since() == set()
        everywhere.bind(("0.0.0.0", 0))
        everywhere.listen()
        assert len(since()) == 1
