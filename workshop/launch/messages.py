"""What a notebook, its supervisor and ranks that stay say to each other: a frozen class for each message.

A message travels as its class's name and its fields as JSON. Who receives one checks it against the class: an
unknown name, a field too many, too few or of another kind is a ValueError. Nothing is unpickled. The messages
between nodes travel in the same way, and those that say the same are these (`nodes.messages`).

    commands    Launch LaunchReplicas StartRanks StopRanks      numbered; their events carry the number
                Cancel
    events      Ready Broken                                    of the supervisor itself
                Started Done Network ReplicasDone               of a launch; `Clean` follows, and is the last
                RanksStarted RanksFailed RankDied               of ranks that stay
                Clean
    answers     GroupState                                      of a rank that stays
                Submission                                      of the process that submits jobs
    files       JobProgram                                      of a job, for its ranks

What lies in a file is read and checked in the same way (`read_file`).
"""

from __future__ import annotations

import functools
import json
import types
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any

from workshop.launch.fresh.nodes import Nodes

IDLE_FOLLOWS = "idle_follows"  # in the metadata of a rank's answer: False where it published nothing

# ---------------------------------------------------------------------------- commands


@dataclass(frozen=True)
class RankProgram:
    """What each rank of a launch runs, and on what.

    file: the program's text. module: its name, where it is run as ``python -m`` does. passed: the file of
    values that become its variables (`request.pickled`). device: cuda, cpu. device_memory: bytes.
    """

    file: str
    cwd: str
    sys_path: tuple[str, ...]
    args: tuple[str, ...] = ()
    module: str | None = None
    passed: str | None = None
    device: str = "cpu"
    device_memory: int | None = None


@dataclass(frozen=True)
class Launch:
    """Run a program on ``n`` fresh ranks of this node. run_dir: where they write. timeout: seconds."""

    program: RankProgram
    n: int
    run_id: str
    run_dir: str
    env: dict[str, str]
    timeout: float
    max_restarts: int
    nodes: Nodes | None = None
    id: int = 0


@dataclass(frozen=True)
class LaunchReplicas:
    """Run a launch several times side by side. env_of: what the environment of each replica has besides.

    own_network: give them a network that nobody else can enter, where this machine allows one.
    """

    launch: Launch
    env_of: tuple[dict[str, str], ...]
    own_network: bool
    id: int = 0


@dataclass(frozen=True)
class NodeRanks:
    """Ranks ``first`` to ``first + n - 1``, of ``world_size`` in all, on one node, and what they find there.

    device: cuda, cpu. device_memory: bytes.
    """

    first: int
    n: int
    world_size: int
    device: str
    device_memory: int | None
    cwd: str
    sys_path: tuple[str, ...]
    env: dict[str, str]


@dataclass(frozen=True)
class StartRanks:
    """Start ranks that stay.

    connections: a file for each rank, as Jupyter's kernels have them. store: where they meet, if not in a
    file.
    """

    ranks: NodeRanks
    directory: str
    connections: tuple[str, ...]
    store: str | None
    id: int = 0


@dataclass(frozen=True)
class StopRanks:
    """End the ranks that the command of number ``group`` has started."""

    group: int
    id: int = 0


@dataclass(frozen=True)
class Cancel:
    """End the launch of that number now. why: ``cancelled``, ``timeout``."""

    launch: int
    why: str


# ---------------------------------------------------------------------------- events


@dataclass(frozen=True)
class Ready:
    """torch is imported; so many GPUs are here."""

    gpus: int


@dataclass(frozen=True)
class Broken:
    """The supervisor cannot go on, and leaves."""

    why: str


@dataclass(frozen=True)
class Started:
    """An attempt has begun: process numbers and folders by rank, and how those of the attempt before ended.

    replica: whose attempt; None where there are none. An exit code is negative for a signal.
    """

    id: int
    attempt: int
    pids: dict[int, int]
    folders: dict[int, str]
    previous: dict[int, int | None]
    replica: int | None = None


@dataclass(frozen=True)
class Elsewhere:
    """How the launch ended on another of its nodes. why: ``failed``, ``cancelled``, or ``gone``, with the
    store by which the nodes hear of one another. ranks: those that failed there.
    """

    why: str
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class LaunchEnd:
    """How one agent's launch ended. state: succeeded, failed, cancelled, timeout; of a replica also stopped,
    broken. why: what the agent could not do. elsewhere: what another node has left word of.
    """

    state: str
    exit_codes: dict[int, int | None]
    why: str | None = None
    elsewhere: Elsewhere | None = None


@dataclass(frozen=True)
class Done:
    """A launch has ended."""

    id: int
    end: LaunchEnd


@dataclass(frozen=True)
class Network:
    """Whether replicas have a network of their own, and why not."""

    id: int
    own: bool
    why: str


@dataclass(frozen=True)
class ReplicasDone:
    """All replicas have ended. state: ended, cancelled, timeout. ends: None for one ended before it said."""

    id: int
    state: str
    ends: dict[int, LaunchEnd | None]
    why: str | None = None


@dataclass(frozen=True)
class RanksStarted:
    """The kernels' process numbers, by rank."""

    id: int
    pids: dict[int, int]


@dataclass(frozen=True)
class RanksFailed:
    """The kernels could not be started."""

    id: int
    why: str


@dataclass(frozen=True)
class RankDied:
    """A rank that stays has ended."""

    id: int
    rank: int
    exit_code: int | None


@dataclass(frozen=True)
class Clean:
    """A launch or a stop is over, and so is all that its ranks had left running: ``orphans`` processes."""

    id: int
    orphans: int


# ---------------------------------------------------------------------------- answers of ranks that stay


@dataclass(frozen=True)
class GroupState:
    """A rank's process group. sequence: how many collectives it has entered there; -1 without a group.

    stale: the learner's variables that hold a group which was left.
    """

    group: bool
    sequence: int
    stale: tuple[str, ...] = ()


# ---------------------------------------------------------------------------- of jobs


@dataclass(frozen=True)
class Submission:
    """What a scheduler has answered to a batch script: the job's number, or why there is none."""

    job: str = ""
    error: str = ""


@dataclass(frozen=True)
class JobProgram:
    """What each rank of a job runs; the node adds its own search path, and the rank its device and values.

    sweep: each element of the array has values of its own. replicas: how many; 0 where the job has none.
    one_node: of all its ranks.
    """

    program: RankProgram
    sweep: bool
    replicas: int
    one_node: bool


Command = Launch | LaunchReplicas | StartRanks | StopRanks
OfLaunch = Started | Done | Network | ReplicasDone | Clean
OfRanks = RanksStarted | RanksFailed | RankDied | Clean
Event = Ready | Broken | OfLaunch | OfRanks


# ---------------------------------------------------------------------------- as text


def named(*kinds: Any) -> dict[str, type]:
    """Message classes, and those of unions of them, by name: what a receiver knows."""
    each = (one for kind in kinds for one in typing.get_args(kind) or (kind,))
    return {kind.__name__: kind for kind in each}


COMMANDS = named(Command, Cancel)
EVENTS = named(Event)


def to_json(message: Any) -> str:
    """The fields of a message."""
    return json.dumps(asdict(message))


def from_json(kind: type, text: str | bytes) -> Any:
    """A message of a kind that is known.

    Raises:
        ValueError: the text is no JSON, or its fields are not those of ``kind``.
    """
    return _as(kind, json.loads(text), kind.__name__)


def write_file(path: Path, message: Any) -> None:
    """Leave a message in a file, whole or not at all."""
    partial = path.with_name(path.name + ".part")
    partial.write_text(to_json(message), encoding="utf-8")
    partial.rename(path)


def read_file(kind: type, path: Path) -> Any:
    """The message that `write_file` left there.

    Raises:
        ValueError: it is none of that kind; the sentence names the file.
    """
    try:
        return from_json(kind, path.read_bytes())
    except ValueError as error:
        raise ValueError(
            f"{path} cannot be used ({error}): it was changed, or another version of the workshop wrote it"
        ) from None


def parsed(name: bytes, header: bytes, known: Mapping[str, type]) -> Any:
    """A message from a wire. Raises ValueError for a name that is not ``known``, and as `from_json`."""
    kind = known.get(name.decode("ascii", "replace"))
    if kind is None:
        raise ValueError(f"unknown message {name!r:.80} (known: {', '.join(known)})")
    return from_json(kind, header)


def packed(message: Any) -> bytes:
    """A message in one piece: its name, a blank, its fields."""
    return f"{type(message).__name__} {to_json(message)}".encode()


def unpacked(data: bytes, known: Mapping[str, type]) -> Any:
    """What `packed` made. Raises as `parsed`."""
    name, _, header = data.partition(b" ")
    return parsed(name, header, known)


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _as(hint: Any, value: Any, where: str) -> Any:
    """``value`` as JSON tells it, as the field wants it; ValueError where it is of another kind."""
    if hint in _SCALARS:
        if type(value) is hint or (hint is float and type(value) is int):
            return value
    elif is_dataclass(hint):
        return _record(typing.cast(type, hint), value, where)
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        return None if value is None else _as(inner[0], value, where)
    if origin is tuple and isinstance(value, list):
        return tuple(_as(inner[0], item, where) for item in value)
    if origin is dict and isinstance(value, dict):
        keys = (int(key) if inner[0] is int else key for key in value)
        return {key: _as(inner[1], item, where) for key, item in zip(keys, value.values(), strict=True)}
    raise ValueError(f"{where} must be {getattr(hint, '__name__', hint)}, not {value!r:.80}")


_SCALARS = frozenset((str, int, float, bool))


def _record(kind: type, value: Any, where: str) -> Any:
    hints = _hints(kind)
    if not isinstance(value, dict) or value.keys() != hints.keys():
        raise ValueError(f"a message {where} has {', '.join(hints) or 'no fields'}, not {value!r:.200}")
    return kind(**{name: _as(hints[name], item, f"{where}.{name}") for name, item in value.items()})
