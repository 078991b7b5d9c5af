"""Exercise: the one line of a batch script that starts all ranks on all nodes.

The check does not compare texts. It reads the line as the two programs do: how many torchruns srun starts,
how many ranks each of them starts, and whether they would find one another.
"""

from __future__ import annotations

import re
import shlex
from typing import Any

from workshop.exercises.engine.check import Call, Wrong, call, shown

CASES = ((2, 4), (3, 2), (1, 8))
_SHORT = {"-N": "nodes", "-n": "ntasks"}
_NODES_OF_THE_JOB = re.compile(r"\$\{?SLURM_(JOB_NUM_NODES|NNODES)\}?")


def check(names: dict[str, Any]) -> str:
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
        raise Wrong(f"`{written}` must run torch.distributed.run, which runs train.py.")
    if words[at] != "torchrun" and words[at - 1] != "-m":
        raise Wrong(f"`{written}`: without -m, python looks for a file named torch.distributed.run.")
    words = [_NODES_OF_THE_JOB.sub(str(num_nodes), word) for word in words]
    for_srun, for_torchrun = _flags(words[1:at]), _flags(words[at + 1 : words.index("train.py")])
    _started(written, for_srun, for_torchrun, (num_nodes, ranks_per_node))
    _met(written, for_torchrun, num_nodes)


def _flags(words: list[str]) -> dict[str, str]:
    """Flag (without dashes, with - for _) to value, whether joined by =, by a space, or like -n2."""
    answer: dict[str, str] = {}
    for word, after in zip(words, [*words, ""][1:], strict=True):
        if not word.startswith("-"):
            continue
        if word[:2] in _SHORT and word[2:].isdigit():
            answer[_SHORT[word[:2]]] = word[2:]
            continue
        flag, equals, value = word.partition("=")
        name = _SHORT.get(flag, flag.lstrip("-").replace("_", "-"))
        answer[name] = value if equals else after
    return answer


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
        raise Wrong(f"`{written}` asks srun for {nodes} nodes; wanted {num_nodes}.")
    if tasks != num_nodes:
        raise Wrong(
            f"`{written}`: srun starts {tasks} torchruns, and each of them {ranks} ranks: {tasks * ranks} "
            f"processes for {num_nodes * ranks_per_node} places. A task is a torchrun: one on each node."
        )
    if ranks != ranks_per_node:
        raise Wrong(f"`{written}`: torchrun starts {ranks} ranks on a node; wanted {ranks_per_node}.")


def _met(written: str, flags: dict[str, str], num_nodes: int) -> None:
    """Would the torchruns find one another, and nobody else?"""
    nodes = _whole(flags, "nnodes", 1, written)
    if nodes != num_nodes:
        raise Wrong(
            f"`{written}`: each torchrun expects {nodes} node{'s' * (nodes > 1)}, so there would be "
            f"{num_nodes} worlds that do not know of each other (or one that waits). Add --nnodes."
        )
    if "standalone" in flags:
        raise Wrong(
            f"`{written}`: --standalone makes each torchrun meet at its own node and ignore the endpoint, so "
            "they never meet one another. Leave it out."
        )
    endpoint = flags.get("rdzv-endpoint", "")
    host, _, port = endpoint.rpartition(":")
    if re.fullmatch(r"localhost|127\.0\.0\.1|\$\(?hostname\)?|0\.0\.0\.0", host):
        raise Wrong(f"`{written}`: {host} is a different machine on every node. They meet on one: $head.")
    if host not in ("$head", "${head}"):
        raise Wrong(f"`{written}`: the endpoint is {endpoint or 'missing'}; wanted $head:$port.")
    if port not in ("$port", "${port}"):
        raise Wrong(f"`{written}`: the port {port or '(none)'} is fixed, so a second job cannot use it.")
    if flags.get("rdzv-backend") != "c10d":
        raise Wrong(f"`{written}` does not contain --rdzv-backend=c10d: the endpoint would be unused.")
    if "SLURM_JOB_ID" not in flags.get("rdzv-id", ""):
        raise Wrong(
            f"`{written}`: --rdzv-id distinguishes one job's torchruns from another's: $SLURM_JOB_ID."
        )
