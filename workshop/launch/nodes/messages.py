"""What a notebook and the program on a further node say to each other: a frozen class for each message.

A message travels as its class's name, its fields as JSON (`launch.messages`), and frames of bytes beside it
(`nodes.wire`). One that does not fit its class ends the connection. Nothing is unpickled.

    the starter's pipes        Hello                 node -> notebook, a line of its stdout
                               Invitation            notebook -> node, the one line of its stdin
    questions and answers      Clock Start Stop Sync Clear Pass Cut     ->  Answer, Time, Started
    without an answer          Signal Leave                             ->
                               Ready Alive RankDied File                <-
    carried both ways          Shell Iopub Store     frames of Jupyter's protocol, and of the ranks' store
    in a frame of Store        StoreQuestion         rank -> notebook, then a value or two
                               StoreAnswer           notebook -> rank, then the values
"""

from __future__ import annotations

from dataclasses import dataclass

from workshop.launch import messages
from workshop.launch.messages import NodeRanks, RankDied, RanksStarted, named

# ---------------------------------------------------------------------------- by the starter's pipes


@dataclass(frozen=True)
class Hello:
    """A node's program is there: its public key, its host's name, and the workshop that it runs."""

    key: str
    host: str
    version: str


@dataclass(frozen=True)
class Invitation:
    """Where the notebook listens, its public key, and the network of the ranks as the site names it."""

    endpoint: str
    key: str
    interface: str


# ---------------------------------------------------------------------------- from the notebook


@dataclass(frozen=True)
class Start:
    """Start ranks. Their ``env`` holds what the notebook wants; the rest is the node's own.

    own_path: the ranks find packages where this node's Python does too, after their ``sys_path``.
    """

    ranks: NodeRanks
    own_path: bool
    id: int = 0


@dataclass(frozen=True)
class Stop:
    """End the ranks; the program stays."""

    id: int = 0


@dataclass(frozen=True)
class Clock:
    """What time is it there? Its answer also says that all that was sent before has been done."""

    id: int = 0


@dataclass(frozen=True)
class Sync:
    """Send all that these ranks have written."""

    ranks: tuple[int, ...]
    id: int = 0


@dataclass(frozen=True)
class Clear:
    """Send it, then forget the last cell's failure, report and stacks."""

    ranks: tuple[int, ...]
    id: int = 0


@dataclass(frozen=True)
class Pass:
    """Write the one frame into a file of the ranks' directory."""

    name: str
    id: int = 0


@dataclass(frozen=True)
class Cut:
    """Have the ranks' cutting threads cut their group."""

    id: int = 0


@dataclass(frozen=True)
class Signal:
    """Send a rank a signal."""

    rank: int
    number: int


@dataclass(frozen=True)
class Leave:
    """End the ranks and yourself."""


# ---------------------------------------------------------------------------- from the node


@dataclass(frozen=True)
class Ready(messages.Ready):
    """Its engine is up, on the host of that name."""

    host: str


@dataclass(frozen=True)
class Alive:
    """Twice a second, so that silence means something."""


@dataclass(frozen=True)
class Answer:
    """That question is dealt with. ``error``: a sentence, or the file that is gone."""

    id: int
    error: str = ""


@dataclass(frozen=True)
class Time:
    """Seconds of the node's monotonic clock."""

    id: int
    now: float


@dataclass(frozen=True)
class Started(RanksStarted):
    """The ranks are there, and this key signs their kernels' messages. id: the question's."""

    key: str


@dataclass(frozen=True)
class File:
    """The frame was added to a file of that rank."""

    rank: int
    name: str


# ---------------------------------------------------------------------------- both ways


@dataclass(frozen=True)
class Shell:
    """Frames of the kernel's shell channel: a request there, an answer here."""

    rank: int


@dataclass(frozen=True)
class Iopub:
    """Frames that the kernel has published."""

    rank: int


@dataclass(frozen=True)
class Store:
    """A question to the ranks' store, and its answer: who asks, then the frames."""


@dataclass(frozen=True)
class StoreQuestion:
    """What a rank asks of the store. amount: for ``add``. seconds: the patience of ``get`` and ``wait``."""

    op: str
    keys: tuple[str, ...]
    id: int
    amount: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class StoreAnswer:
    """What it answers to the question of that id. number: a count, or 1 for yes. error: a sentence."""

    id: int
    number: int = 0
    error: str = ""


ToNode = Start | Stop | Clock | Sync | Clear | Pass | Cut | Signal | Leave | Shell | Store
ToNotebook = Ready | Alive | Answer | Time | Started | RankDied | File | Shell | Iopub | Store
Question = Start | Stop | Clock | Sync | Clear | Pass | Cut
Reply = Answer | Time | Started
Message = Hello | Invitation | ToNode | ToNotebook

TO_NODE = named(ToNode)
TO_NOTEBOOK = named(ToNotebook)
