"""Exercise: the one line of a batch script that starts all ranks on all nodes.

The check does not compare texts. It reads the line as the two programs do: how many torchruns srun starts,
how many ranks each of them starts, and whether they would find one another.
"""

from __future__ import annotations

import re
import shlex
from typing import Any

from workshop.lessons.check import Call, Wrong, call, shown
from workshop.lessons.exercise import Exercise, WrongAnswer

QUESTION = """\
A batch script has set $head (the address of the job's first node) and $port (made from the job's number).
Write `srun_line(num_nodes, ranks_per_node)`: the text of the line that starts train.py on all nodes, by srun
and `python -m torch.distributed.run` with the c10d rendezvous."""

STUB = '''\
def srun_line(num_nodes: int, ranks_per_node: int) -> str:
    """srun's flags, then torchrun's, then train.py."""
    return f"srun {...} python -m torch.distributed.run {...} train.py"
'''

SOLUTION = '''\
def srun_line(num_nodes: int, ranks_per_node: int) -> str:
    """srun's flags, then torchrun's, then train.py."""
    return (
        f"srun --nodes={num_nodes} --ntasks-per-node=1 python -m torch.distributed.run"
        f" --nnodes={num_nodes} --nproc-per-node={ranks_per_node}"
        " --rdzv-id=$SLURM_JOB_ID --rdzv-backend=c10d --rdzv-endpoint=$head:$port train.py"
    )
'''

CASES = ((2, 4), (3, 2), (1, 8))
_SHORT = {"-N": "nodes", "-n": "ntasks"}


def _check(names: dict[str, Any]) -> str:
    """Three jobs, each read as srun and torchrun would read it."""
    for num_nodes, ranks_per_node in CASES:
        made = Call((num_nodes, ranks_per_node))
        written = made.written("srun_line")
        line = call(names["srun_line"], "srun_line", made)
        if not isinstance(line, str):
            raise Wrong(f"`{written}` gave {shown(line)}; wanted a line of text.")
        _judge(line, written, num_nodes, ranks_per_node)
    return "Three jobs, each line read as srun and torchrun read it."


def _judge(line: str, written: str, num_nodes: int, ranks_per_node: int) -> None:
    try:
        words = shlex.split(line.replace("\\\n", " "))
    except ValueError as error:
        raise Wrong(f"`{written}` gave a line that no shell can read: {error}.") from None
    if not words or words[0] != "srun":
        raise Wrong(f"`{written}` begins with {shown(' '.join(words[:1]))}: srun starts it on every node.")
    at = next((i for i, word in enumerate(words) if word in ("torch.distributed.run", "torchrun")), None)
    if at is None or "train.py" not in words[at:]:
        raise Wrong(f"`{written}` must run torch.distributed.run, and that train.py.")
    for_srun, for_torchrun = _flags(words[1:at]), _flags(words[at + 1 : words.index("train.py")])
    _started(written, for_srun, for_torchrun, (num_nodes, ranks_per_node))
    _met(written, for_torchrun, num_nodes)


def _flags(words: list[str]) -> dict[str, str]:
    """Flag (without dashes, with - for _) to value, whether joined by = or a space."""
    found: dict[str, str] = {}
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if not word.startswith("-"):
            continue
        flag, equals, value = word.partition("=")
        name = _SHORT.get(flag, flag.lstrip("-").replace("_", "-"))
        found[name] = value if equals else after
    return found


def _whole(flags: dict[str, str], name: str, usual: int, written: str) -> int:
    text = flags.get(name, "")
    if name in flags and not text.isdigit():
        raise Wrong(f"`{written}`: --{name} is {text!r}; wanted a number.")
    return int(text) if text else usual


def _started(
    written: str, for_srun: dict[str, str], for_torchrun: dict[str, str], wanted: tuple[int, int]
) -> None:
    """Count what would be started; the first thing that does not fit is said."""
    num_nodes, ranks_per_node = wanted
    nodes = _whole(for_srun, "nodes", num_nodes, written)  # srun takes the job's where nothing is said
    each = _whole(for_srun, "ntasks-per-node", 1, written)
    tasks = _whole(for_srun, "ntasks", nodes * each, written)
    ranks = _whole(for_torchrun, "nproc-per-node", 1, written)
    if nodes != num_nodes:
        raise Wrong(f"`{written}` asks srun for {nodes} nodes of {num_nodes}.")
    if tasks != num_nodes:
        raise Wrong(
            f"`{written}`: srun starts {tasks} torchruns, and each of them {ranks} ranks: {tasks * ranks} "
            f"processes for {num_nodes * ranks_per_node} places. A task is a torchrun: one on each node."
        )
    if ranks != ranks_per_node:
        raise Wrong(f"`{written}`: torchrun starts {ranks} ranks on a node; wanted {ranks_per_node}.")


def _met(written: str, flags: dict[str, str], num_nodes: int) -> None:
    """Would the torchruns find one another, and nobody else?"""
    told = _whole(flags, "nnodes", 1, written)
    if told != num_nodes:
        raise Wrong(
            f"`{written}`: each torchrun expects {told} node{'s' * (told > 1)}, so there would be "
            f"{num_nodes} worlds that know nothing of each other (or one that waits). Say --nnodes."
        )
    endpoint = flags.get("rdzv-endpoint", "")
    host, _, port = endpoint.rpartition(":")
    if re.fullmatch(r"localhost|127\.0\.0\.1|\$\(?hostname\)?|0\.0\.0\.0", host):
        raise Wrong(f"`{written}`: {host} is another machine on every node. They meet on one: $head.")
    if host not in ("$head", "${head}"):
        raise Wrong(f"`{written}`: the endpoint is {endpoint or 'not said'}; wanted $head:$port.")
    if port not in ("$port", "${port}"):
        raise Wrong(f"`{written}`: with the port {port or '(none)'} fixed, a second job there is refused it.")
    if flags.get("rdzv-backend") != "c10d":
        raise Wrong(f"`{written}` does not say --rdzv-backend=c10d: the endpoint would go unused.")
    if "SLURM_JOB_ID" not in flags.get("rdzv-id", ""):
        raise Wrong(f"`{written}`: --rdzv-id tells one job's torchruns from another's: $SLURM_JOB_ID.")


SRUN_LINE = Exercise(
    name="srun_line",
    day=6,
    question=QUESTION,
    stub=STUB,
    hints=(
        "srun starts a task on every node. What is a task here: a rank, or a torchrun that starts ranks?",
        "One task a node: --ntasks-per-node=1. torchrun gets --nnodes, --nproc-per-node, three --rdzv-... .",
        "On every node alike: --rdzv-id=$SLURM_JOB_ID --rdzv-backend=c10d --rdzv-endpoint=$head:$port.",
    ),
    solution=SOLUTION,
    defines=("srun_line",),
    check=_check,
    shows="srun starts one torchrun a node, torchrun the ranks; they meet at one address that all know.",
    wrong_answers=(
        WrongAnswer(
            "a task for each rank",
            SOLUTION.replace("--ntasks-per-node=1", "--ntasks-per-node={ranks_per_node}"),
            "A task is a torchrun: one on each node",
        ),
        WrongAnswer(
            "no --nnodes", SOLUTION.replace(" --nnodes={num_nodes}", ""), "2 worlds that know nothing"
        ),
        WrongAnswer(
            "everybody meets at home",
            SOLUTION.replace("$head", "localhost"),
            "localhost is another machine on every",
        ),
        WrongAnswer("a fixed port", SOLUTION.replace("$port", "29500"), "with the port 29500 fixed"),
        WrongAnswer(
            "all ranks on each node",
            SOLUTION.replace("={ranks_per_node}", "={num_nodes * ranks_per_node}"),
            "torchrun starts 8 ranks on a node; wanted 4",
        ),
        WrongAnswer(
            "no backend", SOLUTION.replace(" --rdzv-backend=c10d", ""), "does not say --rdzv-backend=c10d"
        ),
        WrongAnswer(
            "an id that all jobs share",
            SOLUTION.replace("$SLURM_JOB_ID", "train"),
            "one job's torchruns from another's",
        ),
    ),
)
