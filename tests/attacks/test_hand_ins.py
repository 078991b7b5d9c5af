"""What a hand-in tries on its grader: each of these is run by `workshop grade`'s own grader, in its sandbox."""

import contextlib
import os
import socket
from pathlib import Path

import pytest

from tests.attacks.table import attack
from tests.waiting import wait_until
from workshop.classroom.grading.graded import Grader, _Ranks
from workshop.classroom.grading.handins import Answered
from workshop.classroom.grading.sandbox import MIB, Bounds, why_not_isolated
from workshop.exercises import find

SOLUTION = find("ring_bytes").solution
WRONG = "def ring_bytes(num_bytes, world_size):\n    return 0\n"


@pytest.fixture(autouse=True)
def _sandboxes_are_allowed_here():
    if why := why_not_isolated():
        pytest.skip(f"no sandbox: {why}")


def judged(source, seconds=20.0, memory=1024, processes=48):
    """The verdict on a cell for ring_bytes, as one reads it."""
    grader = Grader(Bounds(seconds, memory * MIB, processes, 64 * MIB))
    verdict = grader.judged(find("ring_bytes"), {"ring_bytes": Answered(source, "", ())})
    return f"{verdict.state}: {verdict.message}"


def inside(body):
    """A cell that is right if what it tries first succeeds, and else raises what it was told."""
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    return f"def tried():\n{lines}\n\ntried()\n\n{SOLUTION}"


def left_over():
    """Processes of a sandbox's user."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if path.stat().st_uid >= 2_000_000_000:
                found.append(path.name)
    return found


@attack("a loop without an end", "a hand-in")
def test_loop():
    return judged(f"{SOLUTION}\nwhile True: pass\n", seconds=2.0)


@attack("a fork bomb", "a hand-in")
def test_fork_bomb():
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n"
    said = judged(bomb, seconds=60.0, processes=32)
    wait_until(lambda: not left_over())
    return f"{said} None is left"


@attack("a list that takes all memory", "a hand-in")
def test_memory():
    hog = "import time\nheld = []\nwhile True:\n    held.append(bytearray(2**24))\n    time.sleep(0.002)\n"
    return judged(hog, memory=300, seconds=60.0)


@attack("700 MiB of memory that is shared, and as much in files without a name that nobody maps", "a hand-in")
def test_shared_memory():
    shared = "import mmap\nm = mmap.mmap(-1, 700 << 20)\nfor at in range(0, 700 << 20, 4096): m[at] = 1"
    nameless = "import os\nfor n in range(12): os.write(os.memfd_create('x'), bytes(60 << 20))"
    wait = "\nimport time; time.sleep(20)"
    return " ".join(judged(inside(body + wait), memory=300) for body in (shared, nameless))


@attack("a segment of System V's shared memory, which outlives the process that filled it", "a hand-in")
def test_system_v():
    ask = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
    return judged(inside(f"{ask}if libc.shmget(0, 1 << 20, 0o1600) < 0: raise OSError(ctypes.get_errno())"))


@attack("a file that fills the disk", "a hand-in")
def test_disk():
    return judged(
        inside("with open('big', 'wb') as file:\n    while True:\n        file.write(bytes(2**24))")
    )


@attack("a million lines of output", "a hand-in")
def test_output():
    return judged(f"for _ in range(10**6):\n    print('x' * 100)\n{WRONG}", seconds=60.0)


@attack("reading the grader's keys and the other hand-ins", "a hand-in")
def test_reads(shared, monkeypatch):
    secret = shared.base / "id_rsa"
    secret.write_text("secret")
    monkeypatch.setenv("WORKSHOP_TEST_TOKEN", "secret")
    said = judged(
        inside(f"import os\nassert 'WORKSHOP_TEST_TOKEN' not in os.environ\nopen({str(secret)!r}).read()")
    )
    home = judged(inside("import os\nraise OSError(os.listdir(os.path.expanduser('~')))"))
    return f"{said.partition('`: ')[2]} Its home: {home.partition('`: ')[2]}"


@attack("writing into the workshop, into Python's libraries and to /etc", "a hand-in")
def test_writes():
    told = []
    for path in (find("ring_bytes").folder / "solution.py", Path(os.__file__), Path("/etc/passwd")):
        told.append(judged(inside(f"open({str(path)!r}, 'a').write(' ')")))
    kinds = [said.partition("`: ")[2].partition(": '")[0] for said in told]
    return f"wrong: {', '.join(kinds)}"


@attack("connecting to a server on the grader's own loopback, and looking up a name", "a hand-in")
def test_network():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        said = judged(inside(f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 5)"))
    name = judged(inside("import socket\nsocket.getaddrinfo('example.org', 443)"))
    return f"{said.partition('`: ')[2]} {name.partition('`: ')[2]}"


@attack("ending the grader's process, its parent and all that it may", "a hand-in")
def test_kills():
    body = "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\nos.kill(-1, signal.SIGKILL)"
    return judged(f"{inside(body)}").replace("`", "")


@attack("os._exit(0) before the check", "a hand-in")
def test_exit():
    return judged(f"{SOLUTION}\nimport os\nos._exit(0)\n")


@attack("printing the verdict: `ring_bytes: right.`", "a hand-in")
def test_prints():
    return judged(f"print('ring_bytes: right.')\n{WRONG}")


@attack("replacing the check and `compare` in the workshop's modules, and in sys.modules", "a hand-in")
def test_patches():
    return judged(
        "import sys, types\n"
        "import workshop.exercises.engine.check as words\n"
        "import workshop.exercises.ring_bytes.check as its\n"
        "words.compare = its.compare = lambda *_: None\n"
        "its.check = lambda names: 'right'\n"
        "sys.modules['workshop.exercises.engine.judge'] = types.SimpleNamespace(judge=its.check)\n"
        f"{WRONG}"
    )


@attack("an answer that says it equals every number", "a hand-in")
def test_equals():
    return judged(
        "class Any(float):\n"
        "    __eq__ = __le__ = __ge__ = lambda *_: True\n"
        "    __sub__ = __rsub__ = __abs__ = lambda *_: 0.0\n"
        "    __hash__ = float.__hash__\n\n"
        "def ring_bytes(num_bytes, world_size):\n    return Any(0)\n"
    )


@attack("writing a verdict, and then a pickle that runs code, into the connection to the grader", "a hand-in")
def test_connection():
    forge = (
        "import os, socket, struct\n"
        "def ring_bytes(num_bytes, world_size):\n"
        "    for number in map(int, os.listdir('/proc/self/fd')):\n"
        "        try: end = socket.socket(fileno=os.dup(number))\n"
        "        except OSError: continue\n"
        "        end.sendall(struct.pack('<Q', len(FRAME)) + FRAME)\n"
    )
    verdict = judged(f'FRAME = b\'{{"state": "right"}}\'\n{forge}')
    pickled = judged(f"FRAME = b'cos\\nsystem\\n(S\"touch /tmp/owned\"\\ntR.'\n{forge}")
    assert not Path("/tmp/owned").exists()
    return f"{verdict} / {pickled}"


@attack(
    "asking the grader, in the middle of a check, for `__globals__` of a function of the check", "a hand-in"
)
def test_asks_back():
    source = "def largest_under_cap(cap, parameters):\n    return parameters.__globals__\n"
    verdict = Grader(Bounds(20.0)).judged(
        find("largest_under_cap"), {"largest_under_cap": Answered(source, "", ())}
    )
    return f"{verdict.state}: {verdict.message.partition('. (')[0]}"


@attack("looking the reference solution up in the workshop, and running that", "a hand-in")
def test_solution():
    copied = "from workshop.exercises import find\nexec(find('ring_bytes').solution)\n"
    said = judged(f"{copied}def ring_bytes(n, w, f=ring_bytes): return f(n, w)\n")
    how = "it is in the package, where every learner can read it (`%exercise ring_bytes --solution`)"
    return f"{said.partition(':')[0]}: {how}"


@attack("on ranks: reporting a check of its own, and leaving", "a hand-in")
def test_reports():
    forged = (
        "from workshop.launch.report import report\n"
        "well = {'waited_at': None, 'difference': 0.0}\n"
        "report(check={'waited_at': None, 'wanted': {}, 'held': {}, 'twin': well})\n"
    )
    told = []
    exercise = find("average_gradients")
    stub = "def average_gradients(model):\n    pass\n"
    with contextlib.ExitStack() as boxes:
        grader = Grader(Bounds(60.0))
        ranks = _Ranks(grader, boxes)
        for source in (
            f"{stub}{forged}raise SystemExit(0)\n",
            f"{stub}{forged}",
            f"{stub}import workshop.exercises.average_gradients.on_ranks as tries\ndef all_well(_):\n"
            + "".join(f"    {line}\n" for line in forged.splitlines())
            + "tries.try_on_rank = all_well\n",
        ):
            told.append(grader.judged(exercise, {exercise.name: Answered(source, "", ())}, ranks))
    assert [verdict.state for verdict in told] == ["wrong", "wrong", "right"]
    return (
        f"{told[0].state}: {told[0].message.partition('. ')[0]}. But who replaces the code that tries "
        f"the answer, in "
        "the rank's own process, is believed"
    )
